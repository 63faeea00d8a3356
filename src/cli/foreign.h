/* How options are spelled elsewhere, above all in llama.cpp: what they are here, or what to do instead. */
#ifndef FB_CLI_FOREIGN_H
#define FB_CLI_FOREIGN_H

#include <stdbool.h>

typedef enum cli_foreign_kind {
    CLI_FOREIGN_SAME,    /* `to` is the name of ours, with the same values */
    CLI_FOREIGN_MODEL,   /* its value is MODEL */
    CLI_FOREIGN_LAYERS,  /* layers on the GPU: `to` is "backend", and gets "cpu" for none, "auto" for some */
    CLI_FOREIGN_NOTHING, /* changes nothing here; `to` says why. Its value, if there is one, is passed over */
    CLI_FOREIGN_ADVICE   /* is not there; `to` says what to do instead */
} cli_foreign_kind;

/* Whether a spelling has a value. SWITCH: one of on, off, auto, 0, 1 may follow. */
typedef enum cli_foreign_value { CLI_ALONE, CLI_VALUE, CLI_SWITCH } cli_foreign_value;

typedef struct cli_foreign {
    const char *spelling; /* with its dashes */
    cli_foreign_kind kind;
    const char *to;
    cli_foreign_value value; /* of NOTHING */
} cli_foreign;

/* The row of the first `bytes` of an argument, or NULL. */
const cli_foreign *cli_foreign_find(const char *argument, int bytes);

/* Row 0, 1, … until NULL. */
const cli_foreign *cli_foreign_at(int index);

/* "cpu" or "auto" for a number of layers, "all" or "auto"; NULL for anything else. */
const char *cli_foreign_layers(const char *value);

/* The value that an option has here for what others call `value`: `--top-k -1` is `--top-k 0`. Most values
 * are their own. NULL: as if the option were not given. `option` is our name, without dashes. */
const char *cli_foreign_translate(const char *option, const char *value);

/* Whether this is the value of a switch. */
bool cli_foreign_is_switch(const char *value);

#endif
