/* A lock that its waiters get in the order in which they asked. A mutex does not promise this: a thread that
 * unlocks and locks again at once, as a decoding thread does, would keep the others waiting for long.
 *
 * Waking the next thread takes about 10 us, a tenth of a small model's step. So a thread may keep the lock
 * for several short turns in a row, for a slice of 20 ms. This needs a watcher that passes the lock on if the
 * thread does not come back: worker 1 of the pool, while it spins between two runs. */
#ifndef FB_BASE_TURN_H
#define FB_BASE_TURN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct fb_turn_waiter;

typedef struct fb_turn {
    pthread_mutex_t lock;
    bool taken;
    bool reserved; /* not taken, but reserved for `owner` until fb_turn_pass is called */
    pthread_t owner;
    double since;                         /* when the holder's slice began */
    struct fb_turn_waiter *first, **last; /* the queue of sleeping threads */
} fb_turn;

void fb_turn_init(fb_turn *turn);
void fb_turn_end(fb_turn *turn);
void fb_turn_take(fb_turn *turn);
/* Releases the lock to the first waiting thread. */
void fb_turn_give(fb_turn *turn);
/* The same, but within its time slice the thread may take the lock again before the waiting threads. This
 * needs a watcher, which calls fb_turn_pass repeatedly. It clears `watching` before its last call, so that no
 * lock is reserved after that call. Without a watcher the lock goes to the first waiting thread at once. */
void fb_turn_give_for_now(fb_turn *turn, const atomic_bool *watching);
void fb_turn_pass(fb_turn *turn);

#endif
