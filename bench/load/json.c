#include "json.h"

#include <stdbool.h>
#include <stdio.h>

static bool first;

static void name_of(const char *name)
{
    printf("%s\"%s\": ", first ? "{" : ", ", name);
    first = false;
}

void json_begin(void) { first = true; }
void json_text(const char *name, const char *value) { name_of(name); printf("\"%s\"", value); }
void json_integer(const char *name, uint64_t value) { name_of(name); printf("%lu", (unsigned long)value); }
void json_real(const char *name, double value) { name_of(name); printf("%.4f", value); }

void json_end(void)
{
    puts(first ? "{}" : "}");
    fflush(stdout);
}
