/* Safetensors: a tensor table over a mapped file, or over the shards that an index names. */
#ifndef FB_FILE_SAFETENSORS_H
#define FB_FILE_SAFETENSORS_H

#include "file/tensors.h"

/* Parses one file's bytes, of which the tensors' data must outlive the table. `what` names them in errors.
 * The fuzz entry. */
fb_status fb_tensors_parse(const char *what, const uint8_t *bytes, size_t size, fb_tensor_table **out,
                           fb_error *err);

/* Maps and parses one .safetensors file. */
fb_status fb_tensors_open(const char *path, fb_tensor_table **out, fb_error *err);

/* Maps and parses `directory`/model.safetensors or, without one, the shards of model.safetensors.index.json.
 */
fb_status fb_tensors_open_model(const char *directory, fb_tensor_table **out, fb_error *err);

/* A string of the file's __metadata__, or NULL. */
const char *fb_tensors_metadata(const fb_tensor_table *table, const char *key);

#endif
