/* A lock whose waiters get it in the order in which they came. A mutex gives no such promise: a thread that
 * unlocks and locks again at once, as one that decodes does, would keep the others waiting for long. */
#ifndef FB_BASE_TURN_H
#define FB_BASE_TURN_H

#include <pthread.h>
#include <stdbool.h>

struct fb_turn_waiter;

typedef struct fb_turn {
    pthread_mutex_t lock;
    bool taken;
    struct fb_turn_waiter *first, **last; /* the queue of those that sleep */
} fb_turn;

void fb_turn_init(fb_turn *turn);
void fb_turn_end(fb_turn *turn);
void fb_turn_take(fb_turn *turn);
void fb_turn_give(fb_turn *turn);

#endif
