#include "base/turn.h"

#include <stdatomic.h>
#include <unistd.h>

#include "support/support.h"

enum { THREADS = 6, TURNS = 300 };

typedef struct shared {
    fb_turn turn;
    int64_t counter; /* guarded by the turn alone */
} shared;

static void *take_turns(void *arg) {
    shared *s = arg;
    for (int i = 0; i < TURNS; i++) {
        fb_turn_take(&s->turn);
        s->counter++;
        fb_turn_give(&s->turn);
    }
    return NULL;
}

static void one_at_a_time(void **state) {
    (void)state;
    shared s = {.counter = 0};
    pthread_t threads[THREADS];
    fb_turn_init(&s.turn);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &s), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(s.counter, THREADS * TURNS);
    fb_turn_end(&s.turn);
}

typedef struct line {
    fb_turn turn;
    atomic_int arrived;
    int32_t order[THREADS], served;
} line;

typedef struct person {
    line *line;
    int32_t number;
} person;

static void *wait_once(void *arg) {
    person *p = arg;
    atomic_fetch_add(&p->line->arrived, 1);
    fb_turn_take(&p->line->turn);
    p->line->order[p->line->served++] = p->number;
    fb_turn_give(&p->line->turn);
    return NULL;
}

/* Threads are served in the order in which they came, also before the previous holder asks again. */
static void in_order(void **state) {
    (void)state;
    line l = {.served = 0};
    person people[THREADS];
    pthread_t threads[THREADS];
    fb_turn_init(&l.turn);
    fb_turn_take(&l.turn);
    for (int i = 0; i < THREADS; i++) {
        people[i] = (person){&l, i};
        assert_int_equal(pthread_create(&threads[i], NULL, wait_once, &people[i]), 0);
        while (atomic_load(&l.arrived) <= i) usleep(100);
        usleep(20000); /* it sleeps in the queue now */
    }
    fb_turn_give(&l.turn);
    fb_turn_take(&l.turn);
    assert_int_equal(l.served, THREADS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(l.order[i], i);
    fb_turn_give(&l.turn);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    fb_turn_end(&l.turn);
}

/* ---- a turn that is reserved for a slice ---- */

typedef struct slice {
    line *line;
    atomic_int served;
} slice;

static void *wait_for_slice(void *arg) {
    slice *s = arg;
    atomic_fetch_add(&s->line->arrived, 1);
    fb_turn_take(&s->line->turn);
    atomic_store(&s->served, 1);
    fb_turn_give(&s->line->turn);
    return NULL;
}

/* With `watching`, the previous holder may come back before the waiting thread, within its slice and until
 * the turn is passed on. Without it, or after the slice, the waiting thread gets the turn. */
static void slices(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        line l = {.served = 0};
        slice s = {.line = &l};
        atomic_bool watching = way != 0;
        pthread_t thread;
        fb_turn_init(&l.turn);
        fb_turn_take(&l.turn);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_slice, &s), 0);
        while (atomic_load(&l.arrived) == 0) usleep(100);
        usleep(20000);
        if (way) { /* a new slice, because this thread has just got the turn */
            fb_turn_give(&l.turn);
            pthread_join(thread, NULL);
            atomic_store(&s.served, 0);
            fb_turn_take(&l.turn);
            assert_int_equal(pthread_create(&thread, NULL, wait_for_slice, &s), 0);
            while (!l.turn.first) usleep(1); /* rarely longer than a slice; then the test shows nothing */
        }
        fb_turn_give_for_now(&l.turn, &watching);
        bool reserved = l.turn.reserved;
        if (way == 0) assert_false(reserved);
        if (reserved && way == 1) { /* back at once, and again */
            fb_turn_take(&l.turn);
            assert_int_equal(atomic_load(&s.served), 0);
            fb_turn_give_for_now(&l.turn, &watching);
        }
        fb_turn_pass(&l.turn);
        pthread_join(thread, NULL);
        assert_int_equal(atomic_load(&s.served), 1);
        fb_turn_take(&l.turn);
        fb_turn_give(&l.turn);
        fb_turn_end(&l.turn);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_at_a_time), cmocka_unit_test(in_order),
                                       cmocka_unit_test(slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
