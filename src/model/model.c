#include "model/model.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "arch/gguf.h"
#include "base/sized.h"
#include "file/json.h"
#include "file/map.h"
#include "file/safetensors.h"
#include "model/locate.h"

#define PATH_SIZE 4096
#define LIMIT_ID  (1 << 24)

static fb_status join(const char *directory, const char *name, char path[PATH_SIZE], fb_error *err) {
    if (snprintf(path, PATH_SIZE, "%s/%s", directory, name) >= PATH_SIZE)
        return fb_fail(err, FB_ERROR_FILE, "%.64s...: path of %zu bytes (at most %d)", directory,
                       strlen(directory) + strlen(name), PATH_SIZE);
    return FB_OK;
}

static fb_status read_config(const char *directory, fb_spec **out, fb_error *err) {
    char path[PATH_SIZE];
    fb_json *json;
    FB_TRY(join(directory, "config.json", path, err));
    FB_TRY(fb_json_load(path, FB_CONFIG_LIMIT, &json, err));
    fb_status status = fb_arch_describe_json(path, json, out, err);
    fb_json_free(json);
    return status;
}

/* eos_token_id: one id or a list of them. */
static fb_status read_ends(const char *path, const fb_json *json, fb_spec *spec, bool *found, fb_error *err) {
    const fb_json *value = fb_json_member(json, "eos_token_id");
    *found = value != NULL;
    if (!value) return FB_OK;
    spec->end_count = 0;
    size_t count = fb_json_is(value, FB_JSON_ARRAY) ? fb_json_size(value) : 1;
    if (count > FB_MAX_ENDS)
        return fb_fail(err, FB_ERROR_FILE, "%s: eos_token_id: %zu ids (at most %d)", path, count,
                       FB_MAX_ENDS);
    for (size_t i = 0; i < count; i++) {
        const fb_json *id = fb_json_is(value, FB_JSON_ARRAY) ? fb_json_at(value, i) : value;
        int64_t number = fb_json_int_of(id);
        char text[64];
        if (!fb_json_is(id, FB_JSON_INT) || number < 0 || number >= LIMIT_ID)
            return fb_fail(err, FB_ERROR_FILE, "%s: eos_token_id: %s (0 to %d)", path,
                           fb_json_show(id, text, sizeof text), LIMIT_ID - 1);
        spec->ends[spec->end_count++] = (int32_t)number;
    }
    return FB_OK;
}

static fb_status read_begin(const char *path, const fb_json *json, fb_spec *spec, fb_error *err) {
    int64_t id;
    FB_TRY(fb_json_int(path, json, "bos_token_id", 0, LIMIT_ID - 1, FB_NONE, &id, err));
    spec->begin = (int32_t)id;
    return FB_OK;
}

/* generation_config.json has the last word on what begins and ends a text. */
static fb_status find_ends(const char *directory, fb_spec *spec, fb_error *err) {
    static const char *const names[] = {"generation_config.json", "config.json"};
    bool found = false;
    for (size_t i = 0; i < 2 && (!found || spec->begin == FB_NONE); i++) {
        char path[PATH_SIZE];
        FB_TRY(join(directory, names[i], path, err));
        if (fb_map_missing(path)) continue;
        fb_json *json;
        FB_TRY(fb_json_load(path, FB_CONFIG_LIMIT, &json, err));
        fb_status status = found ? FB_OK : read_ends(path, json, spec, &found, err);
        if (status == FB_OK && spec->begin == FB_NONE) status = read_begin(path, json, spec, err);
        fb_json_free(json);
        FB_TRY(status);
    }
    return FB_OK;
}

/* A model may have more ids than its tokenizer (padding to a round number), never fewer. */
static fb_status check_tokenizer(const char *path, fb_model *m, fb_error *err) {
    int64_t ids = fb_tokenizer_vocab(m->tokenizer), vocab = m->spec->program.vocab;
    if (ids > vocab)
        return fb_fail(err, FB_ERROR_FILE, "%s: token id %lld (the model's vocabulary has %lld)", path,
                       (long long)ids - 1, (long long)vocab);
    fb_tokenizer_pad(m->tokenizer, vocab);
    return FB_OK;
}

static fb_status open_tokenizer(const char *directory, fb_model *m, fb_error *err) {
    char path[PATH_SIZE];
    const char *name;
    FB_TRY(fb_tokenizer_open_folder(directory, &m->tokenizer, &name, err));
    if (!m->tokenizer) return FB_OK;
    FB_TRY(join(directory, name, path, err));
    return check_tokenizer(path, m, err);
}

static fb_status open_directory(const char *path, fb_model *m, fb_error *err) {
    FB_TRY(read_config(path, &m->spec, err));
    FB_TRY(find_ends(path, m->spec, err));
    FB_TRY(fb_tensors_open_model(path, &m->tensors, err));
    FB_TRY(fb_model_bind(m, path, err));
    FB_TRY(open_tokenizer(path, m, err));
    return m->tokenizer ? fb_model_chat_open(path, &m->chat, err) : FB_OK;
}

/* ---- a GGUF file ----------------------------------------------------------------------------------------
 */

static fb_status find_gguf_ends(const char *path, fb_model *m, fb_error *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t id;
        FB_TRY(fb_json_int(path, m->gguf->values, keys[i], 0, LIMIT_ID - 1, -1, &id, err));
        if (id >= 0) m->spec->ends[m->spec->end_count++] = (int32_t)id;
    }
    int64_t begin;
    FB_TRY(fb_json_int(path, m->gguf->values, "tokenizer.ggml.bos_token_id", 0, LIMIT_ID - 1, FB_NONE, &begin,
                       err));
    m->spec->begin = (int32_t)begin;
    return FB_OK;
}

static fb_status open_gguf(const char *path, fb_model *m, fb_error *err) {
    FB_TRY(fb_gguf_open(path, &m->gguf, err));
    m->tensors = m->gguf->tensors;
    FB_TRY(fb_gguf_describe(path, m->gguf, &m->spec, err));
    FB_TRY(find_gguf_ends(path, m, err));
    FB_TRY(fb_model_bind(m, path, err));
    FB_TRY(fb_tokenizer_from_gguf(path, m->gguf, &m->tokenizer, err));
    if (!m->tokenizer) return FB_OK;
    FB_TRY(check_tokenizer(path, m, err));
    return fb_model_chat_from_gguf(m->gguf, m->tokenizer, &m->chat, err);
}

/* Tokens that end a turn under these names, whatever the file calls its end. Only special and added tokens
 * count: in other vocabularies the same text is plain. */
static void find_turn_ends(fb_model *m) {
    static const char *const names[] = {
        "<|im_end|>", "<|eot_id|>",      "<|eom_id|>",    "<end_of_turn>",   "<turn|>",
        "<|end|>",    "<|end_of_turn|>", "<|endoftext|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
    };
    _Static_assert(sizeof names / sizeof *names <= FB_MAX_TURN_ENDS, "room for all of them");
    for (size_t i = 0; m->tokenizer && i < sizeof names / sizeof *names; i++) {
        int32_t id = fb_tokenizer_find_added(m->tokenizer, names[i]);
        if (id >= 0) m->turn_ends[m->turn_end_count++] = id;
    }
}

/* ---- the model ------------------------------------------------------------------------------------------
 */

typedef struct attachment {
    void (*release)(void *arg);
    void *arg;
    struct attachment *next;
} attachment;

struct fb_attached {
    pthread_mutex_t lock;
    attachment *first;
};

fb_status fb_model_new(fb_model **out, fb_error *err) {
    fb_model *m = calloc(1, sizeof *m);
    if (!m) return fb_fail_memory(err, "model", sizeof *m);
    m->attached = calloc(1, sizeof *m->attached);
    if (!m->attached) {
        free(m);
        return fb_fail_memory(err, "model", sizeof *m->attached);
    }
    pthread_mutex_init(&m->attached->lock, NULL);
    *out = m;
    return FB_OK;
}

fb_status fb_model_open(const char *path, fb_model **out, fb_error *err) {
    fb_model *m;
    *out = NULL;
    if (!path || !*path) return fb_fail(err, FB_ERROR_USAGE, "model: no path given");
    FB_TRY(fb_model_new(&m, err));
    fb_located located;
    fb_status status = fb_model_locate(path, &located, err);
    if (status == FB_OK)
        status = located.gguf ? open_gguf(located.path, m, err) : open_directory(located.path, m, err);
    free(located.path);
    if (status != FB_OK) {
        fb_model_free(m);
        return status;
    }
    const fb_program *p = &m->spec->program;
    m->info.architecture = m->spec->architecture;
    m->info.layers = p->layers;
    m->info.hidden = p->hidden;
    m->info.vocab = p->vocab;
    m->info.context = p->context;
    m->info.has_tokenizer = m->tokenizer != NULL;
    find_turn_ends(m);
    *out = m;
    return FB_OK;
}

/* In reverse order. */
static void release_attached(struct fb_attached *all) {
    while (all->first) {
        attachment *a = all->first;
        all->first = a->next;
        a->release(a->arg);
        free(a);
    }
    pthread_mutex_destroy(&all->lock);
    free(all);
}

fb_status fb_model_attach(const fb_model *m, void (*release)(void *arg), void *arg, fb_error *err) {
    attachment *a = malloc(sizeof *a);
    if (!a) return fb_fail_memory(err, "model", sizeof *a);
    pthread_mutex_lock(&m->attached->lock);
    *a = (attachment){release, arg, m->attached->first};
    m->attached->first = a;
    pthread_mutex_unlock(&m->attached->lock);
    return FB_OK;
}

void *fb_model_attached(const fb_model *m, void (*release)(void *arg)) {
    pthread_mutex_lock(&m->attached->lock);
    const attachment *a = m->attached->first;
    while (a && a->release != release) a = a->next;
    void *arg = a ? a->arg : NULL;
    pthread_mutex_unlock(&m->attached->lock);
    return arg;
}

void fb_model_free(fb_model *m) {
    if (!m) return;
    release_attached(m->attached);
    free(m->weights);
    if (!m->borrows) {
        fb_tokenizer_free(m->tokenizer);
        fb_model_chat_free(m->chat);
        if (m->gguf)
            fb_gguf_free(m->gguf);
        else
            fb_tensors_free(m->tensors);
    }
    fb_spec_free(m->spec);
    free(m);
}

FB_SIZED_ENDS_WITH(fb_model_info, parameters);

void fb_model_fill_info(const fb_model *m, fb_model_info *info) {
    fb_sized_give(&m->info, sizeof m->info, info);
}

bool fb_model_weights(const fb_model *m, int index, fb_dtype *dtype, int64_t *weights, int64_t *bytes) {
    for (int i = 0; i < FB_DTYPE_COUNT && index >= 0; i++) {
        if (!m->parameters[i] || index-- > 0) continue;
        *dtype = (fb_dtype)i;
        *weights = m->parameters[i];
        *bytes = m->bytes[i];
        return true;
    }
    return false;
}

bool fb_model_fact(const fb_model *m, int index, const char **name, const char **value) {
    if (index < 0 || index >= m->spec->fact_count) return false;
    *name = m->spec->facts[index].name;
    *value = m->spec->facts[index].value;
    return true;
}

bool fb_model_is_end(const fb_model *m, int32_t id) {
    for (int32_t i = 0; i < m->spec->end_count; i++)
        if (m->spec->ends[i] == id) return true;
    for (int32_t i = 0; i < m->turn_end_count; i++)
        if (m->turn_ends[i] == id) return true;
    return false;
}

/* ---- text -----------------------------------------------------------------------------------------------
 */

static fb_status need_tokenizer(const fb_model *m, fb_error *err) {
    return m->tokenizer ? FB_OK : fb_fail(err, FB_ERROR_FILE, "model: no tokenizer: text needs one");
}

const fb_tokenizer *fb_model_tokenizer(const fb_model *m) { return m->tokenizer; }

fb_status fb_tokenize(const fb_model *m, const char *text, size_t bytes, bool special, int32_t **ids,
                      int64_t *count, fb_error *err) {
    *ids = NULL;
    *count = 0;
    FB_TRY(need_tokenizer(m, err));
    return fb_tokenizer_encode(m->tokenizer, text, bytes, special, ids, count, err);
}

fb_status fb_detokenize(const fb_model *m, const int32_t *ids, int64_t count, bool special, char **text,
                        size_t *bytes, fb_error *err) {
    *text = NULL;
    *bytes = 0;
    FB_TRY(need_tokenizer(m, err));
    return fb_tokenizer_decode(m->tokenizer, ids, count, special, text, bytes, err);
}

fb_status fb_text_create(const fb_model *m, fb_text_stream **out, fb_error *err) {
    *out = NULL;
    FB_TRY(need_tokenizer(m, err));
    return fb_tokenizer_stream(m->tokenizer, out, err);
}
