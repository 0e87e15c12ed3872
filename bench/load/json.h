/* The one line of output, written field by field. */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include <stdint.h>

void json_begin(void);
void json_text(const char *name, const char *value);
void json_integer(const char *name, uint64_t value);
void json_real(const char *name, double value);
void json_end(void);

#endif
