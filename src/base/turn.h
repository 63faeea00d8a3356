/* A lock whose waiters get it in the order in which they came. A mutex gives no such promise: a thread that
 * unlocks and locks again at once, as one that decodes does, would keep the others waiting for long.
 *
 * To hand it to a thread that sleeps takes about 10 us, as long as a tenth of a small model's step. So a
 * thread may keep it for several short turns in a row, a slice of time, if somebody watches for the case that
 * it does not come back. */
#ifndef FB_BASE_TURN_H
#define FB_BASE_TURN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct fb_turn_waiter;

typedef struct fb_turn {
    pthread_mutex_t lock;
    bool taken;
    bool kept; /* not taken, but the next one to take it is `keeper`, unless fb_turn_pass comes first */
    pthread_t keeper;
    double since;                         /* when the slice of who has it began */
    struct fb_turn_waiter *first, **last; /* the queue of those that sleep */
} fb_turn;

void fb_turn_init(fb_turn *turn);
void fb_turn_end(fb_turn *turn);
void fb_turn_take(fb_turn *turn);
/* Gives it to the first that waits. */
void fb_turn_give(fb_turn *turn);
/* The same, but within its slice the thread may take it again before the others, as long as somebody watches:
 * who calls fb_turn_pass again and again, and clears `watching` before it calls it for the last time. */
void fb_turn_give_for_now(fb_turn *turn, const atomic_bool *watching);
void fb_turn_pass(fb_turn *turn);

#endif
