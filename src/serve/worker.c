#include "serve/worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_WAITING 256
#define MAX_THREADS 4

struct serve_worker {
    pthread_t threads[MAX_THREADS];
    int thread_count, niceness;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Guarded by the lock: */
    bool stop;
    int waiting;
    serve_work *first, **last;
};

static serve_work *take(serve_worker *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stop) pthread_cond_wait(&w->wake, &w->lock);
    serve_work *work = w->first;
    if (work) {
        w->first = work->next;
        if (!w->first) w->last = &w->first;
        w->waiting--;
    }
    pthread_mutex_unlock(&w->lock);
    return work;
}

static void *run(void *arg) {
    serve_worker *w = arg;
    if (w->niceness)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), w->niceness); /* on Linux, the thread */
    for (serve_work *work; (work = take(w));) work->run(work);
    return NULL;
}

serve_worker *serve_worker_open(int threads, int niceness) {
    serve_worker *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->last = &w->first;
    w->niceness = niceness;
    while (w->thread_count < threads && w->thread_count < MAX_THREADS &&
           pthread_create(&w->threads[w->thread_count], NULL, run, w) == 0)
        w->thread_count++;
    if (w->thread_count) return w;
    serve_worker_close(w);
    return NULL;
}

void serve_worker_close(serve_worker *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->thread_count; i++) pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

bool serve_worker_add(serve_worker *w, serve_work *work) {
    pthread_mutex_lock(&w->lock);
    bool room = w->waiting < MAX_WAITING;
    if (room) {
        work->next = NULL;
        *w->last = work;
        w->last = &work->next;
        w->waiting++;
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return room;
}
