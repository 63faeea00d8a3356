#include "run/execution.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/pool.h"
#include "plan/price.h"
#include "run/cache.h"

/* Rows of a prefill step: enough to use each weight many times per read, few enough that the activations of a
 * small model stay in the L2 cache. Not tuned. */
#define DEFAULT_CHUNK 128
/* The least slots beyond the window of a ring of layers with a window of their own, unless a session asks for
 * chunks of a certain size. A session can go back by so many tokens. No bit depends on the size of a ring. */
#define RING_CHUNK 512
/* On a GPU: enough rows to fill it with tiles even for the smaller matrices. */
#define DEFAULT_CHUNK_GPU 512

/* Guards the list, and the state and users of its entries. `opened` signals a change of state. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static fb_execution *executions;

/* ---- requests ---- */

static fb_status check_options(const fb_session_options *o, fb_error *err) {
    if (o->threads < 0 || o->threads > FB_POOL_MAX_WORKERS)
        return fb_fail(err, FB_ERROR_USAGE, "threads: %d (0 to %d)", o->threads, FB_POOL_MAX_WORKERS);
    if ((unsigned)o->act >= FB_FLOAT_COUNT)
        return fb_fail(err, FB_ERROR_USAGE, "act: %d (f32, f16, bf16, f64)", (int)o->act);
    return FB_OK;
}

static fb_status copy_text(const char *text, const char **out, fb_error *err) {
    *out = text ? strdup(text) : NULL;
    return text && !*out ? fb_fail_memory(err, "options", (int64_t)strlen(text)) : FB_OK;
}

static void free_request(fb_request *r) {
    free((void *)(uintptr_t)r->session.fuse);
    free((void *)(uintptr_t)r->session.machine);
    free((void *)(uintptr_t)r->session.isa);
    r->session.fuse = r->session.machine = r->session.isa = NULL;
}

/* Caches of both then have the same layout. */
static void copy_layout(const fb_executor_options *from, fb_executor_options *to) {
    to->capacity = from->capacity;
    to->block = from->block;
    to->ring = from->ring;
    memcpy(to->slots, from->slots, sizeof to->slots);
    memcpy(to->rings, from->rings, sizeof to->rings);
    to->chunk = from->chunk;
    to->beyond = from->beyond;
}

static fb_status settle(const fb_model *model, const fb_session_options *options,
                        const fb_execution_options *more, fb_request *r, fb_error *err) {
    fb_session_options *o = &r->session;
    *r = (fb_request){.session = *options};
    o->fuse = o->machine = o->isa = NULL;
    FB_TRY(fb_backend_find(options, &r->backend, &r->device, err));
    FB_TRY(check_options(o, err));
    fb_executor_options *e = &r->executor;
    int64_t chunk = r->backend == &fb_backend_cpu ? DEFAULT_CHUNK : DEFAULT_CHUNK_GPU;
    e->beyond = options->chunk && !more->wanted ? 0 : RING_CHUNK;
    FB_TRY(fb_cache_settle(&model->spec->program, o, chunk, e, err));
    FB_TRY(fb_dtype_parse_kv(options->kv, o->act, &e->kv, err));
    FB_TRY(copy_text(options->fuse ? options->fuse : "auto", &o->fuse, err));
    FB_TRY(copy_text(options->machine, &o->machine, err));
    FB_TRY(copy_text(options->isa, &o->isa, err));
    o->kv = o->backend = NULL; /* already resolved into the request */
    o->draft = NULL;
    r->greedy = o->greedy && !o->all_logits && !o->on_hidden;
    r->float_dot = o->float_dot || o->act == FB_F64;
    e->threads = o->threads;
    e->act = o->act;
    e->isa = o->isa;
    e->profile = o->profile;
    e->epilogue_rows = o->all_logits || o->on_hidden ? o->chunk : more->wanted > 1 ? more->wanted : 1;
    e->block = more->block ? more->block : r->backend->session_block;
    e->sequences = more->wanted > 1 ? more->wanted : 1;
    /* Steps are recorded for a number of rows that is a power of two. */
    e->epilogue_rows += more->drafted;
    if (more->like) copy_layout(&more->like->request.executor, e);
    while (r->backend->graphs && (e->epilogue_rows & (e->epilogue_rows - 1)) && !o->all_logits &&
           !o->on_hidden)
        e->epilogue_rows++;
    e->invariant = !o->any_order;
    e->one_role = o->exact;
    return FB_OK;
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static bool same_ring(const fb_ring *a, const fb_ring *b) {
    return a->sinks == b->sinks && a->window == b->window && a->begin == b->begin && a->size == b->size;
}

/* Whether two requests can share an execution. Options that only concern the session itself are ignored. */
static bool same_request(const fb_request *a, const fb_request *b) {
    const fb_session_options *s = &a->session, *t = &b->session;
    const fb_executor_options *e = &a->executor, *f = &b->executor;
    return a->backend == b->backend && a->device == b->device && a->greedy == b->greedy &&
           a->float_dot == b->float_dot && s->exact == t->exact && s->capacity == t->capacity &&
           same_text(s->fuse, t->fuse) && same_text(s->machine, t->machine) && same_text(s->isa, t->isa) &&
           e->threads == f->threads && e->act == f->act && e->kv == f->kv && e->profile == f->profile &&
           e->capacity == f->capacity && same_ring(&e->ring, &f->ring) && e->chunk == f->chunk &&
           e->beyond == f->beyond && e->epilogue_rows == f->epilogue_rows && e->block == f->block &&
           e->sequences == f->sequences && e->invariant == f->invariant;
}

/* ---- weights: on a device as long as their model is open ---- */

typedef struct resident {
    fb_device *device;
    fb_loaded *loaded;
} resident;

static void release_weights(void *arg) {
    resident *r = arg;
    fb_device_unload(r->device, r->loaded);
    fb_device_give(r->device);
    free(r);
}

/* Makes the model a user of the device and of its weights there, so that they stay loaded. */
static fb_status keep_weights(fb_execution *x, const fb_bound *file, fb_error *err) {
    resident *r = calloc(1, sizeof *r);
    if (!r) return fb_fail_memory(err, "weights", sizeof *r);
    bool first;
    fb_status status = fb_device_take(x->request.backend, x->request.device, &r->device, err);
    if (status == FB_OK) status = fb_device_load(r->device, file, 1, &r->loaded, &first, err);
    if (status == FB_OK) status = fb_model_attach(x->model, release_weights, r, err);
    if (status == FB_OK) return FB_OK;
    if (r->loaded) fb_device_unload(r->device, r->loaded);
    fb_device_give(r->device);
    free(r);
    return status;
}

static fb_status load_weights(fb_execution *x, fb_error *err) {
    fb_bound file = {&x->model->spec->program, x->model->weights};
    bool first;
    FB_TRY(fb_device_load(x->device, &file, x->request.executor.threads, &x->loaded, &first, err));
    x->weights = x->loaded->table;
    return first ? keep_weights(x, &file, err) : FB_OK;
}

/* ---- the plan ---- */

static const char *step_why_not(const void *arg, const fb_program *program) {
    const fb_execution *x = arg;
    return fb_device_step_why_not(x->device, &(fb_bound){program, x->weights}, &x->request.executor);
}

static void ask_device(fb_execution *x) {
    const fb_request *r = &x->request;
    fb_plan_options *o = &x->options;
    o->graph = r->backend->graphs;
    if (r->backend->step_why_not) o->step_why_not = step_why_not;
    o->step_arg = x;
    if (!r->backend->screen) o->no_screen = "only on the cpu backend";
    if (r->greedy && (o->fuses & FB_FUSE_BIT(FB_FUSE_HEAD_SCREEN)))
        o->screen_failed = fb_device_screen(x->device, &(fb_bound){&x->model->spec->program, x->weights},
                                            r->executor.threads, r->executor.isa, &o->screen) != FB_OK;
}

void fb_execution_machine(const fb_execution *x, fb_machine *machine) {
    const fb_request *r = &x->request;
    const fb_session_options *o = &r->session;
    int32_t workers = o->threads ? o->threads : fb_pool_cores();
    if (r->backend == &fb_backend_cpu) {
        if (!o->machine || !fb_machine_load(o->machine, workers, o->isa, o->act, machine))
            fb_machine_assume(machine, workers, o->act);
    } else if (!o->machine || !fb_machine_load_gpu(o->machine, r->device, o->act, machine)) {
        fb_machine_assume_gpu(machine, r->device, o->act);
    }
}

/* If no position is given: decoding in the middle of the cache, or with a full ring. */
fb_shape fb_execution_shape(const fb_execution *x, const fb_machine *machine, const fb_planning *planning) {
    const fb_executor_options *e = &x->request.executor;
    return (fb_shape){.rows = 1,
                      .position = planning         ? planning->position
                                  : e->ring.window ? e->ring.sinks + e->ring.window
                                                   : e->capacity / 2,
                      .epilogue_rows = 1,
                      .workers = machine->workers,
                      .act = e->act,
                      .kv = e->kv};
}

/* Makes the planner's choice. */
static fb_status choose(fb_execution *x, const fb_planning *planning, fb_error *err) {
    fb_machine machine;
    if (planning)
        machine = *planning->machine;
    else
        fb_execution_machine(x, &machine);
    fb_shape shape = fb_execution_shape(x, &machine, planning);
    return fb_plan_choose(&x->model->spec->program, x->model->weights, &machine, &shape, &x->options, err);
}

static fb_status make_plan(fb_execution *x, const fb_planning *planning, fb_error *err) {
    const fb_request *r = &x->request;
    bool automatic;
    x->options = (fb_plan_options){.exact = r->session.exact,
                                   .greedy = r->greedy,
                                   .float_dot = r->float_dot,
                                   .sinks = r->executor.ring.sinks,
                                   .window = r->executor.ring.window,
                                   .context = r->executor.ring.window
                                                  ? r->executor.ring.sinks + r->executor.ring.window + 1
                                                  : r->session.capacity};
    FB_TRY(fb_fuse_parse(r->session.fuse, &x->options.fuses, &automatic, err));
    ask_device(x);
    if (automatic) FB_TRY(choose(x, planning, err));
    FB_TRY(fb_plan_make(&x->model->spec->program, &x->options, &x->plan, err));
    x->request.executor.graph = x->plan.applied & FB_FUSE_BIT(FB_FUSE_GRAPH);
    x->request.executor.step = x->plan.applied & FB_FUSE_BIT(FB_FUSE_STEP);
    return FB_OK;
}

/* ---- opening and sharing ---- */

static fb_status open_execution(fb_execution *x, const fb_planning *planning, fb_error *err) {
    FB_TRY(fb_device_take(x->request.backend, x->request.device, &x->device, err));
    FB_TRY(load_weights(x, err));
    FB_TRY(make_plan(x, planning, err));
    return fb_executor_open(x->device, &(fb_bound){&x->plan.program, x->weights}, &x->request.executor,
                            &x->executor, err);
}

static void close_execution(fb_execution *x) {
    fb_executor_close(x->executor);
    if (x->loaded) fb_device_unload(x->device, x->loaded);
    fb_device_give(x->device);
    free_request(&x->request);
    free(x);
}

static void unlink_execution(fb_execution *x) {
    fb_execution **at = &executions;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
}

/* Finds an execution that matches, and waits until it is ready; NULL: there is none. The caller holds the
 * lock. */
static fb_execution *find(const fb_model *model, const fb_request *request) {
    for (fb_execution *x = executions; x; x = x->next) {
        if (x->alone || x->model != model || x->state == FB_EXECUTION_FAILED ||
            !same_request(&x->request, request))
            continue;
        x->users++;
        while (x->state == FB_EXECUTION_OPENING) pthread_cond_wait(&opened, &lock);
        if (x->state == FB_EXECUTION_READY) return x;
        if (--x->users == 0) {
            unlink_execution(x);
            close_execution(x);
        }
        return NULL; /* the caller tries itself, and gets the error message */
    }
    return NULL;
}

static fb_status open_new(fb_execution *x, const fb_planning *planning, fb_error *err) {
    fb_status status = open_execution(x, planning, err);
    pthread_mutex_lock(&lock);
    x->state = status == FB_OK ? FB_EXECUTION_READY : FB_EXECUTION_FAILED;
    bool last = status != FB_OK && --x->users == 0;
    if (last) unlink_execution(x);
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
    if (last) close_execution(x);
    return status;
}

fb_status fb_execution_take(const fb_model *model, const fb_session_options *options,
                            const fb_execution_options *given, fb_execution **out, fb_error *err) {
    *out = NULL;
    fb_execution_options more = given ? *given : (fb_execution_options){0};
    const fb_planning *planning = more.planning;
    fb_request request;
    fb_status status = settle(model, options, &more, &request, err);
    fb_execution *x = NULL, *made = status == FB_OK ? calloc(1, sizeof *made) : NULL;
    if (status == FB_OK && !made) status = fb_fail_memory(err, "executor", sizeof *made);
    if (status != FB_OK) {
        free_request(&request);
        return status;
    }
    *made = (fb_execution){.model = model, .request = request, .alone = planning != NULL, .users = 1};
    pthread_mutex_lock(&lock);
    if (!planning) x = find(model, &made->request);
    if (!x) {
        made->next = executions;
        executions = made;
    }
    pthread_mutex_unlock(&lock);
    if (x) {
        free_request(&made->request);
        free(made);
    } else {
        x = made;
        FB_TRY(open_new(x, planning, err));
    }
    *out = x;
    return FB_OK;
}

void fb_execution_share(fb_execution *x) {
    pthread_mutex_lock(&lock);
    x->users++;
    pthread_mutex_unlock(&lock);
}

void fb_execution_give(fb_execution *x) {
    if (!x) return;
    pthread_mutex_lock(&lock);
    bool last = --x->users == 0;
    if (last) unlink_execution(x);
    pthread_mutex_unlock(&lock);
    if (last) close_execution(x);
}

int64_t fb_trace_fuse_calls(const fb_trace *trace, int fuse) {
    return fuse == FB_FUSE_GRAPH ? trace->graphs : fuse == FB_FUSE_STEP ? trace->listed : trace->fuses[fuse];
}
