/* One way to stop: a benchmark that met something unexpected has no result worth printing. */
#ifndef BENCH_FAIL_H
#define BENCH_FAIL_H

#include <stddef.h>

/* Prints the message on stderr and exits with status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same with the text of errno. */
_Noreturn void fail_errno(const char *what);

/* Memory, or the end of the program. */
void *allocate(size_t count, size_t size);

#endif
