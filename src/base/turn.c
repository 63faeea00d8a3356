#include "base/turn.h"

#include <stddef.h>

#include "base/clock.h"

/* Long beside the 10 us of a hand-over and the refilling of caches, short beside what a person notices. With
 * 1 ms eight streams of the built-in model ran at 0.8 of the speed of one, with 5 or 10 ms at 0.95. */
#define SLICE 5e-3

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

static void wait_in_queue(fb_turn *turn) {
    struct fb_turn_waiter self = {.granted = false};
    pthread_cond_init(&self.granted_change, NULL);
    /* It leaves the queue before this returns: grant() takes it out. */
    *turn->last = &self;     /* cppcheck-suppress autoVariables */
    turn->last = &self.next; /* cppcheck-suppress autoVariables */
    while (!self.granted) pthread_cond_wait(&self.granted_change, &turn->lock);
    pthread_cond_destroy(&self.granted_change);
}

void fb_turn_take(fb_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    bool kept = turn->kept && pthread_equal(turn->keeper, pthread_self());
    if (turn->taken || (turn->first && !kept))
        wait_in_queue(turn);
    else
        turn->taken = true;
    turn->kept = false;
    if (!kept) turn->since = fb_now();
    pthread_mutex_unlock(&turn->lock);
}

/* To the first in the queue, if there is one. */
static void grant(fb_turn *turn) {
    struct fb_turn_waiter *next = turn->first;
    turn->kept = false;
    turn->taken = next != NULL;
    if (!next) return;
    turn->first = next->next;
    if (!turn->first) turn->last = &turn->first;
    next->granted = true;
    pthread_cond_signal(&next->granted_change);
}

void fb_turn_give(fb_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    grant(turn);
    pthread_mutex_unlock(&turn->lock);
}

/* Who watches clears the flag, then takes the lock: either the flag is seen cleared here, or `kept` there. */
void fb_turn_give_for_now(fb_turn *turn, const atomic_bool *watching) {
    pthread_mutex_lock(&turn->lock);
    turn->kept = turn->first && fb_now() - turn->since < SLICE && atomic_load(watching);
    turn->keeper = pthread_self();
    if (turn->kept)
        turn->taken = false;
    else
        grant(turn);
    pthread_mutex_unlock(&turn->lock);
}

void fb_turn_pass(fb_turn *turn) {
    pthread_mutex_lock(&turn->lock);
    if (turn->kept) grant(turn);
    pthread_mutex_unlock(&turn->lock);
}
