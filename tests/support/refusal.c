#include <string.h>

#include "support/support.h"

void fbt_check_ok(fb_status status, const fb_error *err, const char *file, int line) {
    if (status == FB_OK) return;
    print_error("%s: %s\n", fb_status_name(status), err->message);
    _fail(file, line);
}

static bool holds(const char *message, const char *word, size_t length) {
    return memmem(message, strlen(message), word, length) != NULL;
}

void fbt_check_refused(fb_status status, fb_status expected, const fb_error *err, const char *words,
                       const char *file, int line) {
    const char *message = err->message;
    bool good = status == expected && err->status == expected && *message && !strpbrk(message, "\r\n");
    if (!good)
        print_error("%s, expected %s: \"%s\"\n", fb_status_name(status), fb_status_name(expected), message);
    while (*words) {
        size_t length = strcspn(words, "|");
        if (!holds(message, words, length)) {
            print_error("\"%s\" does not say \"%.*s\"\n", message, (int)length, words);
            good = false;
        }
        words += length + (words[length] == '|');
    }
    if (!good) _fail(file, line);
}
