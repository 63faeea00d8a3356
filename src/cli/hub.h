/* A model by its name on the Hugging Face hub: looked up in the folder that Hugging Face's own programs
 * download to. Nothing is downloaded here. */
#ifndef FB_CLI_HUB_H
#define FB_CLI_HUB_H

#include "cli/cli.h"

/* Whether a name could be one of the hub: ORG/NAME, behind it perhaps @REVISION, perhaps :TAG, which is a
 * part of the name of a GGUF file. */
bool cli_hub_is_name(const char *name);

/* The snapshot's folder, or its GGUF file that TAG names, released with free; or NULL after printing why, and
 * *status is then the exit status. `weights`: a snapshot without them, or with a file missing, is refused. */
char *cli_hub_find(const char *name, bool weights, int *status);

/* What a model at this path is called: the last part of the path, without a file's name in a checkpoint; of a
 * snapshot, NAME. Released with free; NULL without memory. */
char *cli_hub_title(const char *path);

#endif
