#include "cli/hub.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/output.h"

#define MAX_PART 96 /* bytes of an organisation's or a model's name, as the hub limits them */
#define MAX_HASH 64

/* ORG/NAME@REVISION:TAG, taken apart. */
typedef struct hub_name {
    char org[MAX_PART + 1], name[MAX_PART + 1];
    char revision[MAX_PART + 1]; /* "main" if there is none */
    char tag[MAX_PART + 1];      /* empty if there is none */
    char cache[PATH_MAX];        /* the folder of all downloads */
    char folder[2 * PATH_MAX];   /* that of this model */
} hub_name;

/* ---- names ----------------------------------------------------------------------------------- */

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

/* Takes a part of `letters` up to one of `ends`. It is not empty and begins with no dot: it becomes a part of
 * a path. */
static bool take_part(const char **at, const char *letters, const char *ends, char part[MAX_PART + 1]) {
    size_t bytes = strspn(*at, letters);
    if (bytes == 0 || bytes > MAX_PART || **at == '.' || !strchr(ends, (*at)[bytes])) return false;
    memcpy(part, *at, bytes);
    part[bytes] = '\0';
    *at += bytes;
    return !strstr(part, "..");
}

static bool parse(const char *text, hub_name *out) {
    *out = (hub_name){.revision = "main"};
    if (!take_part(&text, LETTERS, "/", out->org) || *text++ != '/') return false;
    if (!take_part(&text, LETTERS, "@:", out->name)) return false; /* or the end, which strchr finds, too */
    if (*text == '@' && (text++, !take_part(&text, LETTERS "/", ":", out->revision))) return false;
    if (*text == ':' && (text++, !take_part(&text, LETTERS, "", out->tag))) return false;
    return !*text;
}

bool cli_hub_is_name(const char *name) {
    hub_name parts;
    return parse(name, &parts);
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* The folder of downloads, as huggingface_hub finds it. */
static bool find_cache(char path[PATH_MAX]) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value) continue;
        return snprintf(path, PATH_MAX, "%s%s", value, places[i].below) < PATH_MAX;
    }
    return false;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int fail_missing(const hub_name *n, const char *given) {
    return cli_fail(
        CLI_USAGE,
        "%s: no such file or folder, nor in the Hugging Face cache %s (nothing is downloaded; to get "
        "it: hf download %s/%s)",
        given, n->cache, n->org, n->name);
}

static int fail_incomplete(const hub_name *n, const char *what) {
    return cli_fail(CLI_USAGE, "%s: missing (the download of %s/%s is incomplete: hf download %s/%s)", what,
                    n->org, n->name, n->org, n->name);
}

/* The name of the snapshot that refs/REVISION holds; or a revision that is a snapshot itself. */
static bool read_ref(const hub_name *n, char hash[MAX_HASH + 2]) {
    char path[3 * PATH_MAX];
    snprintf(path, sizeof path, "%s/refs/%s", n->folder, n->revision);
    FILE *in = fopen(path, "r");
    bool read = in && fgets(hash, MAX_HASH + 2, in);
    if (in) fclose(in);
    if (read)
        hash[strcspn(hash, "\r\n ")] = '\0';
    else
        snprintf(hash, MAX_HASH + 2, "%s", n->revision);
    size_t bytes = strlen(hash);
    return bytes > 0 && bytes <= MAX_HASH && strspn(hash, LETTERS) == bytes && *hash != '.';
}

/* ---- the snapshot ---------------------------------------------------------------------------- */

/* Files of a snapshot are links to what was downloaded. *lost: one that leads nowhere. `weights`: whether
 * there are any. */
static bool look_at(const char *snapshot, char lost[PATH_MAX], bool *weights) {
    DIR *stream = opendir(snapshot);
    const struct dirent *entry;
    *lost = '\0';
    *weights = false;
    while (stream && (entry = readdir(stream))) {
        char path[3 * PATH_MAX];
        struct stat st;
        const char *dot = strrchr(entry->d_name, '.');
        if (*entry->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", snapshot, entry->d_name);
        if (stat(path, &st) != 0 && errno == ENOENT && !*lost) snprintf(lost, PATH_MAX, "%s", path);
        *weights = *weights ||
                   (dot && (!strcmp(dot, ".safetensors") || !strcmp(dot, ".gguf") || !strcmp(dot, ".bin")));
    }
    if (stream) closedir(stream);
    return stream != NULL;
}

static bool has_tag(const char *file, const char *tag) {
    size_t bytes = strlen(tag), length = strlen(file);
    if (length < 5 || strcasecmp(file + length - 5, ".gguf") != 0) return false;
    bool part = strstr(file, "-of-") && !strstr(file, "-00001-of-"); /* the first stands for all */
    for (size_t i = 0; !part && i + bytes <= length; i++)
        if (strncasecmp(file + i, tag, bytes) == 0) return true;
    return false;
}

/* The GGUF file of the snapshot whose name has the tag; one alone. */
static char *find_tagged(const hub_name *n, const char *snapshot, int *status) {
    char *found = NULL;
    int count = 0;
    DIR *stream = opendir(snapshot);
    const struct dirent *entry;
    while (stream && (entry = readdir(stream))) {
        if (!has_tag(entry->d_name, n->tag) || ++count > 1) continue;
        if (asprintf(&found, "%s/%s", snapshot, entry->d_name) < 0) found = NULL;
    }
    if (stream) closedir(stream);
    if (count == 1 && found) return found;
    free(found);
    *status = count == 1
                  ? cli_fail(CLI_FAILED, "%s: no memory", n->name)
                  : cli_fail(CLI_USAGE, "%s: %d GGUF files named %s in %s (give one of the files there)",
                             n->name, count, n->tag, snapshot);
    return NULL;
}

char *cli_hub_find(const char *name, bool weights, int *status) {
    hub_name n;
    char hash[MAX_HASH + 2], snapshot[3 * PATH_MAX], lost[PATH_MAX];
    bool there;
    *status = CLI_USAGE;
    if (!parse(name, &n) || !find_cache(n.cache)) {
        cli_fail(CLI_USAGE, "%s: no such file or folder", name);
        return NULL;
    }
    snprintf(n.folder, sizeof n.folder, "%s/models--%s--%s", n.cache, n.org, n.name);
    if (!is_folder(n.folder)) {
        fail_missing(&n, name);
        return NULL;
    }
    errno = 0;
    bool known = read_ref(&n, hash);
    snprintf(snapshot, sizeof snapshot, "%s/snapshots/%s", n.folder, known ? hash : "");
    if (errno == ENOMEM || !known || !look_at(snapshot, lost, &there)) {
        if (errno == ENOMEM) *status = cli_fail(CLI_FAILED, "%s: no memory", name);
        if (errno == ENOMEM) return NULL;
        cli_fail(CLI_USAGE, "%s: revision %s: not in %s (to get it: hf download %s/%s --revision %s)", name,
                 n.revision, n.folder, n.org, n.name, n.revision);
        return NULL;
    }
    if (weights && (*lost || !there)) {
        if (!*lost) snprintf(lost, sizeof lost, "%.*s/model.safetensors", PATH_MAX - 32, snapshot);
        fail_incomplete(&n, lost);
        return NULL;
    }
    if (*n.tag) return find_tagged(&n, snapshot, status);
    char *found = strdup(snapshot);
    if (!found) *status = cli_fail(CLI_FAILED, "%s: no memory", name);
    return found;
}

/* ---- titles ---------------------------------------------------------------------------------- */

/* Takes off the last part of path[0 … *end), and returns where it begins. */
static size_t last_part(const char *path, size_t *end) {
    while (*end > 1 && path[*end - 1] == '/') --*end;
    size_t start = *end;
    while (start > 0 && path[start - 1] != '/') start--;
    return start;
}

char *cli_hub_title(const char *path) {
    static const char models[] = "models--";
    size_t end = strlen(path), start = last_part(path, &end);
    if (!is_folder(path) && start > 0) end = start - 1, start = last_part(path, &end);
    /* …/models--ORG--NAME/snapshots/HASH */
    size_t above = start > 0 ? start - 1 : 0, above_start = last_part(path, &above);
    if (above_start > 0 && above - above_start == 9 && strncmp(path + above_start, "snapshots", 9) == 0) {
        size_t model = above_start - 1, model_start = last_part(path, &model);
        const char *name = NULL;
        for (size_t i = model_start + sizeof models - 1; i + 2 < model && !name; i++)
            if (path[i] == '-' && path[i + 1] == '-') name = path + i + 2;
        if (strncmp(path + model_start, models, sizeof models - 1) == 0 && name)
            return strndup(name, (size_t)(path + model - name));
    }
    return strndup(path + start, end - start);
}
