/* Threads for work that is too long for those of HTTP and has no place in a scheduler: embeddings, long
 * bodies, schemas. */
#ifndef FB_SERVE_WORKER_H
#define FB_SERVE_WORKER_H

#include <stdbool.h>

typedef struct serve_worker serve_worker;

/* One piece of work, which belongs to its caller until `run` returns. */
typedef struct serve_work {
    void (*run)(struct serve_work *work);
    struct serve_work *next;
} serve_work;

/* Of 1 to 4 threads, as nice as nice(1) says: above 0 they let others go first. NULL: no memory, or no
 * thread.
 */
serve_worker *serve_worker_open(int threads, int niceness);
/* Ends when all work is done. */
void serve_worker_close(serve_worker *worker);
/* False: too much is waiting already. */
bool serve_worker_add(serve_worker *worker, serve_work *work);

#endif
