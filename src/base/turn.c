#include "base/turn.h"

#include <stddef.h>

/* On the waiting thread's stack. */
struct fb_turn_waiter {
    pthread_cond_t granted_change;
    bool granted;
    struct fb_turn_waiter *next;
};

void fb_turn_init(fb_turn *turn) {
    *turn = (fb_turn){.taken = false};
    turn->last = &turn->first;
    pthread_mutex_init(&turn->lock, NULL);
}

void fb_turn_end(fb_turn *turn) { pthread_mutex_destroy(&turn->lock); }

void fb_turn_take(fb_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    if (!turn->taken) {
        turn->taken = true;
    } else {
        struct fb_turn_waiter self = {.granted = false};
        pthread_cond_init(&self.granted_change, NULL);
        *turn->last = &self;
        turn->last = &self.next;
        while (!self.granted) pthread_cond_wait(&self.granted_change, &turn->lock);
        pthread_cond_destroy(&self.granted_change);
    }
    pthread_mutex_unlock(&turn->lock);
}

/* `taken` stays set where a waiter gets the turn. */
void fb_turn_give(fb_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    struct fb_turn_waiter *next = turn->first;
    if (next) {
        turn->first = next->next;
        if (!turn->first) turn->last = &turn->first;
        next->granted = true;
        pthread_cond_signal(&next->granted_change);
    } else {
        turn->taken = false;
    }
    pthread_mutex_unlock(&turn->lock);
}
