/* Chooses a session's backend. The CUDA backend is searched for once: in the file that fb_cuda_library named
 * ("none": not at all), otherwise beside this library, otherwise where the system looks for libraries. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/plugin.h"
#include "base/sized.h"

#define LIBRARY "libfusebox_cuda.so"

static struct {
    pthread_mutex_t lock;
    char given[PATH_MAX];         /* set by fb_cuda_library; empty: not set */
    bool opened;                  /* once true, the fields below do not change */
    const fb_cuda_plugin *plugin; /* NULL: see why_not */
    char why_not[512];
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef const fb_cuda_plugin *(*plugin_fn)(void);

/* Opens the library. False: no such file. Otherwise cuda.plugin or cuda.why_not is set. */
static bool try_open(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(cuda.why_not, sizeof cuda.why_not, "cuda: %.480s", dlerror());
        return false;
    }
    plugin_fn get;
    void *symbol = dlsym(library, FB_CUDA_PLUGIN_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    const fb_cuda_plugin *plugin = symbol ? get() : NULL;
    if (!plugin)
        snprintf(cuda.why_not, sizeof cuda.why_not, "cuda: %.400s: not a library of Fusebox", path);
    else if (strcmp(plugin->version, FB_VERSION) != 0 || plugin->layout != FB_CUDA_LAYOUT)
        snprintf(cuda.why_not, sizeof cuda.why_not,
                 "cuda: %.300s: built for another Fusebox (%.32s, this is %s)", path, plugin->version,
                 FB_VERSION);
    else
        cuda.plugin = plugin;
    if (!cuda.plugin) dlclose(library);
    return true;
}

/* The real path of the file that holds this code: a library, or the program itself, whose name in the link
 * map is empty. For a program dladdr returns argv[0], which may be a bare name. A bare name would be looked
 * up in the working directory, where anybody may have put a library. */
static bool find_self(char path[PATH_MAX]) {
    Dl_info self;
    void *found = NULL;
    static const char anchor = 0;
    if (!dladdr1(&anchor, &self, &found, RTLD_DL_LINKMAP) || !found) return false;
    const struct link_map *map = found;
    return realpath(*map->l_name ? map->l_name : "/proc/self/exe", path) != NULL;
}

/* Tries to open `tail`, relative to the folder of that file. */
static bool try_beside(const char *tail) {
    char self[PATH_MAX], path[PATH_MAX];
    if (!find_self(self)) return false;
    int folder = (int)(strrchr(self, '/') - self + 1);
    int length = snprintf(path, sizeof path, "%.*s%s", folder, self, tail);
    FILE *f = length < (int)sizeof path ? fopen(path, "rb") : NULL;
    if (!f) return false;
    fclose(f);
    return try_open(path);
}

static void open_cuda(void) {
    if (strcmp(cuda.given, "none") == 0)
        snprintf(cuda.why_not, sizeof cuda.why_not, "cuda: switched off (its library is \"none\")");
    else if (*cuda.given)
        try_open(cuda.given);
    else if (!try_beside(LIBRARY) && !try_beside("../lib/" LIBRARY) && !try_open(LIBRARY))
        snprintf(
            cuda.why_not, sizeof cuda.why_not,
            "cuda: no %s beside this program or where the system looks (make builds it if nvcc is installed)",
            LIBRARY);
}

fb_status fb_cuda_library(const char *path, fb_error *err) {
    if (!path) path = "";
    char absolute[2 * PATH_MAX], folder[PATH_MAX];
    size_t size = strlen(path);
    if (size && size < PATH_MAX && *path != '/' && strcmp(path, "none") != 0) {
        /* dlopen looks for a bare name elsewhere, and the working directory may change before it is opened.
         */
        if (!getcwd(folder, sizeof folder))
            return fb_fail(err, FB_ERROR_SYSTEM, "cuda: library: %.300s: working directory: %s", path,
                           strerror(errno));
        snprintf(absolute, sizeof absolute, "%s/%s", folder, path);
        path = absolute;
        size = strlen(path);
    }
    if (size >= sizeof cuda.given)
        return fb_fail(err, FB_ERROR_USAGE, "cuda: library: a path of %zu bytes (at most %zu)", size,
                       sizeof cuda.given - 1);
    pthread_mutex_lock(&cuda.lock);
    bool late = cuda.opened && strcmp(path, cuda.given) != 0;
    if (!late) snprintf(cuda.given, sizeof cuda.given, "%s", path);
    pthread_mutex_unlock(&cuda.lock);
    return late ? fb_fail(err, FB_ERROR_USAGE,
                          "cuda: library: %.300s (only before the backend is first looked for)", path)
                : FB_OK;
}

static fb_status plugin_of(const fb_cuda_plugin **plugin, fb_error *err) {
    pthread_mutex_lock(&cuda.lock);
    if (!cuda.opened) open_cuda();
    cuda.opened = true;
    pthread_mutex_unlock(&cuda.lock);
    *plugin = cuda.plugin;
    return cuda.plugin ? FB_OK : fb_fail(err, FB_ERROR_SYSTEM, "%s", cuda.why_not);
}

static fb_status check_device(const fb_cuda_plugin *plugin, int32_t device, fb_error *err) {
    int32_t count;
    FB_TRY(plugin->count(&count, err));
    if (device >= count)
        return fb_fail(err, FB_ERROR_USAGE, "backend: cuda:%d (there %s %d device%s)", device,
                       count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
    fb_gpu_info info;
    FB_TRY(plugin->describe(device, &info, err));
    if (info.limits.major < FB_CUDA_LEAST_MAJOR)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "cuda: %s: compute capability %d.%d (at least %d.0)",
                       info.name, info.limits.major, info.limits.minor, FB_CUDA_LEAST_MAJOR);
    return FB_OK;
}

fb_status fb_cuda_find(int32_t device, const fb_cuda_plugin **plugin, fb_error *err) {
    FB_TRY(plugin_of(plugin, err));
    return check_device(*plugin, device, err);
}

/* The device index in "cuda" or "cuda:N"; -1 for any other name. */
static int32_t device_in(const char *name) {
    if (strcmp(name, "cuda") == 0) return 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    char *end;
    errno = 0;
    long index = strtol(name + 5, &end, 10);
    return *end || errno || index > 255 ? -1 : (int32_t)index;
}

fb_status fb_backend_find(const fb_session_options *options, const fb_backend **backend, int32_t *device,
                          fb_error *err) {
    const fb_cuda_plugin *plugin;
    const char *name = options->backend;
    bool automatic = !name || strcmp(name, "auto") == 0, cpu_only = options->isa || options->act == FB_F64;
    *backend = &fb_backend_cpu;
    *device = 0;
    if (!automatic && strcmp(name, "cpu") == 0) return FB_OK;
    if (automatic) {
        if (!cpu_only && plugin_of(&plugin, NULL) == FB_OK && check_device(plugin, 0, NULL) == FB_OK)
            *backend = plugin->backend;
        return FB_OK;
    }
    *device = device_in(name);
    if (*device < 0)
        return fb_fail(err, FB_ERROR_USAGE, "backend: \"%.32s\" (auto, cpu, cuda, cuda:0, …)", name);
    FB_TRY(plugin_of(&plugin, err));
    FB_TRY(check_device(plugin, *device, err));
    *backend = plugin->backend;
    return FB_OK;
}

static fb_status describe(int32_t index, bool *found, fb_device_info *info, fb_error *err) {
    const fb_cuda_plugin *plugin;
    int32_t count;
    if (index < 0) return fb_fail(err, FB_ERROR_USAGE, "device: %d (at least 0)", index);
    FB_TRY(plugin_of(&plugin, err));
    FB_TRY(plugin->count(&count, err));
    if (index >= count) return FB_OK;
    fb_gpu_info gpu;
    FB_TRY(plugin->describe(index, &gpu, err));
    snprintf(info->name, sizeof info->name, "%s", gpu.name);
    snprintf(info->isa, sizeof info->isa, "sm_%d%d", gpu.limits.major, gpu.limits.minor);
    info->memory = gpu.memory;
    info->memory_free = gpu.memory_free;
    info->multiprocessors = gpu.limits.sms;
    info->l2_bytes = gpu.limits.l2_bytes;
    info->shared_bytes = gpu.limits.shared_limit;
    info->driver = gpu.driver;
    info->runtime = gpu.runtime;
    fb_error why;
    if (check_device(plugin, index, &why) != FB_OK)
        snprintf(info->why_not, sizeof info->why_not, "%s", why.message);
    *found = true;
    return FB_OK;
}

FB_SIZED_ENDS_WITH(fb_device_info, why_not);

fb_status fb_device_fill(int32_t index, bool *found, fb_device_info *out, fb_error *err) {
    fb_device_info info;
    memset(&info, 0, sizeof info);
    *found = false;
    if (!fb_sized_give(&info, sizeof info, out))
        return fb_fail(err, FB_ERROR_USAGE, "fb_device_info: size: %zu (at least %zu)", out->size,
                       sizeof out->size);
    fb_status status = describe(index, found, &info, err);
    fb_sized_give(&info, sizeof info, out);
    return status;
}
