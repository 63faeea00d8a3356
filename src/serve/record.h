/* The record: a file with every answer and what is needed to run it again, one JSON object a line. A thread
 * of its own writes it: no answer waits for a disk. */
#ifndef FB_SERVE_RECORD_H
#define FB_SERVE_RECORD_H

#include "serve/job.h"

/* Opens a record for appending. */
fb_status serve_record_open(const char *path, serve_record **out, fb_error *err);
/* Writes what still waits. False: lines were lost. */
bool serve_record_close(serve_record *record);

/* A model that is served, before its first answer. */
void serve_record_engine(serve_record *record, serve_engine *engine);
/* A job that has ended: it is written later. */
void serve_record_write(serve_record *record, serve_job *job);
/* Whether so much waits to be written that nothing more should come. */
bool serve_record_full(serve_record *record);
/* How a record spells it. */
const char *serve_finish_name(fb_finish finish);

#endif
