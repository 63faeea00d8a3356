#include "file/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/support.h"

static void maps_the_bytes(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x", dir);
    fbt_file_write(path, "a\0b", 3);
    fb_map map;
    fb_error err;
    assert_false(fb_map_missing(path));
    assert_ok(fb_map_open(path, &map, &err), &err);
    assert_int_equal(map.size, 3);
    assert_memory_equal(map.data, "a\0b", 3);
    fb_map_close(&map);
    assert_null(map.data);
    fb_map_close(&map); /* twice does no harm */
    free(path);
    fbt_dir_remove(dir);
}

static void empty_file_is_empty(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x", dir);
    fbt_text_write(path, "");
    fb_map map;
    fb_error err;
    assert_ok(fb_map_open(path, &map, &err), &err);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    fb_map_close(&map);
    free(path);
    fbt_dir_remove(dir);
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *fifo = fbt_format("%s/fifo", dir), *missing = fbt_format("%s/none", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    fb_map map;
    fb_error err;
    assert_refused(fb_map_open(missing, &map, &err), FB_ERROR_FILE, &err, "none|No such file");
    assert_refused(fb_map_open(dir, &map, &err), FB_ERROR_FILE, &err, "not a regular file");
    assert_refused(fb_map_open(fifo, &map, &err), FB_ERROR_FILE, &err,
                   "fifo|not a regular file"); /* and does not wait */
    assert_null(map.data);
    assert_true(fb_map_missing(missing));
    assert_false(fb_map_missing(dir));
    assert_false(fb_map_missing(fifo));
    char *link = fbt_format("%s/link", dir);
    assert_int_equal(symlink("nowhere", link), 0);
    assert_false(fb_map_missing(link));
    assert_refused(fb_map_open(link, &map, &err), FB_ERROR_FILE, &err, "link|a link to nothing");
    free(link);
    free(fifo);
    free(missing);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_the_bytes),
        cmocka_unit_test(empty_file_is_empty),
        cmocka_unit_test(refuses_what_is_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
