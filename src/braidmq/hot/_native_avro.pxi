# Flat Avro records to columns. Twin: `pure_avro.py`.


cdef inline bint avro_long(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end, int64_t* found) noexcept nogil:
    """A number of one to ten bytes; whether there was one."""
    cdef uint64_t number = 0
    cdef Py_ssize_t i = at[0]
    cdef uint32_t shift = 0
    cdef uint8_t byte
    while i < end:
        byte = b[i]
        i += 1
        if shift == 63 and byte > 1:
            return False
        number |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            at[0] = i
            found[0] = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
            return True
        shift += 7
    return False


def avro_columns(bytes kinds, bytes nulls, ends, data):
    cdef _Column values = _Column(ends, data)
    cdef Py_ssize_t n = values.cells, fields = len(kinds), field, i, at, end, total
    cdef const uint8_t* b = values.data
    cdef const uint8_t* kind_of = <const uint8_t*>PyBytes_AS_STRING(kinds)
    cdef const uint8_t* null_of = <const uint8_t*>PyBytes_AS_STRING(nulls)
    cdef uint8_t kind
    cdef int64_t number
    cdef float single
    cdef double wide
    cdef list valid = [], cells = [], starts = [], found = []
    cdef bytes places, octets, table
    cdef const int32_t* starts_from
    cdef const int32_t* ends_from
    cdef int32_t* ends_to
    cdef uint8_t* to
    cdef uint8_t** valid_to
    cdef uint8_t** cells_to
    cdef uint8_t** starts_to
    cdef uint8_t** pointers
    if not fields or len(nulls) != fields:
        raise BraidError("INVALID_ARGUMENT", reason="every field has a kind and says which branch of it is null")
    for field in range(fields):
        kind = kind_of[field]
        if kind not in b"ildfbs":
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no kind {kind}")
        valid.append(PyBytes_FromStringAndSize(NULL, n if null_of[field] != 255 else 0))
        cells.append(PyBytes_FromStringAndSize(NULL, n if kind == c"b" else 4 * n if kind == c"s" else 8 * n))
        starts.append(PyBytes_FromStringAndSize(NULL, 4 * n if kind == c"s" else 0))
    table = PyBytes_FromStringAndSize(NULL, 3 * fields * <Py_ssize_t>sizeof(void*))
    pointers = <uint8_t**>PyBytes_AS_STRING(table)
    valid_to, cells_to, starts_to = pointers, pointers + fields, pointers + 2 * fields
    for field in range(fields):
        valid_to[field] = <uint8_t*>PyBytes_AS_STRING(valid[field])
        cells_to[field] = <uint8_t*>PyBytes_AS_STRING(cells[field])
        starts_to[field] = <uint8_t*>PyBytes_AS_STRING(starts[field])
    for i in range(n):
        at = values.ends[i]
        end = values.ends[i + 1]
        for field in range(fields):
            kind = kind_of[field]
            if null_of[field] != 255:
                if not avro_long(b, &at, end, &number) or number < 0 or number > 1:
                    return None
                valid_to[field][i] = number != null_of[field]
                if number == null_of[field]:
                    if kind == c"b":
                        cells_to[field][i] = 0
                    elif kind == c"s":
                        (<int32_t*>starts_to[field])[i] = <int32_t>at
                        (<int32_t*>cells_to[field])[i] = 0
                    else:
                        (<int64_t*>cells_to[field])[i] = 0
                    continue
            if kind == c"l" or kind == c"i":
                if not avro_long(b, &at, end, &number) or (kind == c"i" and number != <int32_t>number):
                    return None
                (<int64_t*>cells_to[field])[i] = number
            elif kind == c"d":
                if end - at < 8:
                    return None
                memcpy(cells_to[field] + 8 * i, b + at, 8)
                at += 8
            elif kind == c"f":
                if end - at < 4:
                    return None
                memcpy(&single, b + at, 4)
                wide = single
                memcpy(cells_to[field] + 8 * i, &wide, 8)
                at += 4
            elif kind == c"b":
                if at >= end or b[at] > 1:
                    return None
                cells_to[field][i] = b[at]
                at += 1
            else:
                if not avro_long(b, &at, end, &number) or number < 0 or number > end - at:
                    return None
                (<int32_t*>starts_to[field])[i] = <int32_t>at
                (<int32_t*>cells_to[field])[i] = <int32_t>number
                at += number
        if at != end:
            return None
    for field in range(fields):
        if kind_of[field] != c"s":
            found.append((valid[field], b"", cells[field]))
            continue
        starts_from = <const int32_t*>starts_to[field]
        ends_from = <const int32_t*>cells_to[field]
        total = 0
        for i in range(n):
            total += ends_from[i]
        places = PyBytes_FromStringAndSize(NULL, 4 * (n + 1))
        octets = PyBytes_FromStringAndSize(NULL, total)
        ends_to = <int32_t*>PyBytes_AS_STRING(places)
        to = <uint8_t*>PyBytes_AS_STRING(octets)
        total = 0
        ends_to[0] = 0
        for i in range(n):
            memcpy(to + total, b + starts_from[i], ends_from[i])
            total += ends_from[i]
            ends_to[i + 1] = <int32_t>total
        found.append((valid[field], places, octets))
    return found
