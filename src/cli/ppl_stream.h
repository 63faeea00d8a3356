/* fusebox ppl --cache: a text as one stream, through one cache or several. */
#ifndef FB_CLI_PPL_STREAM_H
#define FB_CLI_PPL_STREAM_H

#include "cli/model.h"
#include "cli/prompt.h"

typedef struct cli_stream_options {
    const char *caches; /* "dense,sinks"; NULL: none was asked for */
    int64_t sinks, window, every;
    const char *svg;
    bool sinks_given, window_given, every_given, svg_given;
} cli_stream_options;

/* Sets the defaults and writes the rows whose targets are in `options`. */
enum { CLI_STREAM_ROWS = 5 };
void cli_stream_rows(cli_stream_options *options, cli_option rows[CLI_STREAM_ROWS]);

/* CLI_OK, or an exit status after printing which option needs --cache, or what is wrong with one. Nothing is
 * read for it. */
int cli_stream_check(const cli_stream_options *options);

/* `text` has its ids. */
int cli_stream_measure(const cli_stream_options *options, const cli_model_options *how, bool json,
                       const fb_model *model, const char *path, const char *file, const cli_prompt *text);

#endif
