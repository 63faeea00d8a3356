#include "cli/memory.h"

#include "cli/output.h"

static const char *const caches[] = {"dense", "window", "sinks", NULL};

void cli_memory_rows(cli_memory_options *o, cli_option rows[CLI_MEMORY_ROWS]) {
    fb_session_options defaults;
    fb_session_options_default(&defaults);
    *o = (cli_memory_options){.cache = "dense", .sinks = defaults.sinks};
    rows[0] =
        (cli_option){CLI_ROW(0, "cache", CLI_CHOICE, &o->cache, "KIND",
                             "which tokens are remembered: all, the last ones, or the first and the last"),
                     .choices = caches, .given = &o->cache_given};
    rows[1] =
        (cli_option){CLI_ROW(0, "sinks", CLI_INT, &o->sinks, "N", "with cache sinks: of the first tokens"),
                     .range = {0, 1e9}, .given = &o->sinks_given};
    rows[2] = (cli_option){
        CLI_ROW(0, "window", CLI_INT, &o->window, "N", "with cache window or sinks: of the last tokens"),
        .range = {1, 1e9}, .fallback = "what the context has, at most 4096 in all",
        .given = &o->window_given};
}

int cli_memory_take(const cli_memory_options *o, fb_cache_kind *cache, int64_t *sinks, int64_t *window) {
    fb_error err;
    if (fb_cache_parse(o->cache, cache, &err) != FB_OK) return cli_fail_error(&err);
    if (o->sinks_given && *cache != FB_CACHE_SINKS)
        return cli_fail(CLI_USAGE, "--sinks: %lld (only with --cache sinks)", (long long)o->sinks);
    if (o->window_given && *cache == FB_CACHE_DENSE)
        return cli_fail(CLI_USAGE, "--window: %lld (only with --cache window or sinks)",
                        (long long)o->window);
    *sinks = o->sinks;
    *window = o->window;
    return CLI_OK;
}
