/* response_format: answers that are JSON, or fit a schema. */
#ifndef FB_SERVE_SCHEMA_H
#define FB_SERVE_SCHEMA_H

#include "serve/job.h"
#include "serve/params.h"

/* Gives the job's sampler the schema that the request asks for. */
bool serve_schema_take(const serve_params *params, serve_job *job, serve_fault *fault);

/* The same for a schema as serve_job.schema has it. */
bool serve_schema_compile(const char *schema, serve_job *job, serve_fault *fault);

#endif
