# Flat JSON objects to columns. Twin: `pure_json.py`.

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

cdef extern from * nogil:
    """
    #include <math.h>

    #define EVERY(byte) (0x0101010101010101ull * (byte))

    /* Bits at the bytes that end a run of plain text: a quote, a backslash, below a space, not ASCII. The lowest one is exact; those
       above it may be wrong, because the subtraction borrows. */
    static inline uint64_t json_stops(uint64_t word) {
        uint64_t quote = word ^ EVERY('"'), slash = word ^ EVERY('\\\\');
        return (((quote - EVERY(1)) & ~quote) | ((slash - EVERY(1)) & ~slash) | ((word - EVERY(32)) & ~word) | word) & EVERY(128);
    }

    static inline int json_first(uint64_t stops) { return __builtin_ctzll(stops) >> 3; }

    /* `digits` times a power of ten, of which `power` is the first 64 bits and `binary` the power of two behind them. What is cut
       off may add up to two units to the product's upper half. Where that could change the rounding the answer is no. */
    static inline int json_scaled(uint64_t digits, uint64_t power, int binary, double *found) {
    #ifdef __SIZEOF_INT128__
        int zeros = __builtin_clzll(digits);
        uint64_t high = (uint64_t)(((unsigned __int128)(digits << zeros) * power) >> 64);
        int spare = high >> 63 ? 11 : 10;
        uint64_t rest = high & ((1ull << spare) - 1), half = 1ull << (spare - 1);
        if (rest == half || rest == half - 1) return 0;
        *found = ldexp((double)((high >> spare) + (rest > half)), spare + 64 - zeros + binary);
        return 1;
    #else
        return 0;
    #endif
    }
    """
    uint64_t json_stops(uint64_t word)
    int json_first(uint64_t stops)
    bint json_scaled(uint64_t digits, uint64_t power, int binary, double* found)
    bint isfinite(double number)
    double fabs(double number)

cdef enum:
    JSON_NUMBER_BYTES_MAX = 127
    JSON_DEPTH_MAX = 60
    JSON_TENS_FROM = -290
    JSON_TENS_TO = 288

cdef double[23] json_tens
cdef uint64_t[JSON_TENS_TO - JSON_TENS_FROM + 1] json_powers
cdef int[JSON_TENS_TO - JSON_TENS_FROM + 1] json_binaries
cdef bint json_prepared = False
cdef Py_ssize_t JSON_VALUE_BYTES_MAX = limits.SCHEMA_MESSAGE_BYTES_MAX
cdef double JSON_SMALLEST = 2.2250738585072014e-308


cdef json_prepare():
    """Powers of ten: the small ones as they are, the others as 64 bits and a power of two."""
    global json_prepared
    for exponent in range(23):
        json_tens[exponent] = float(10**exponent)
    for exponent in range(JSON_TENS_FROM, JSON_TENS_TO + 1):
        power = 10 ** abs(exponent)
        if exponent < 0:
            binary = -63 - power.bit_length()
            power = (1 << -binary) // power
        else:
            binary = power.bit_length() - 64
            power = power >> binary if binary > 0 else power << -binary
        json_powers[exponent - JSON_TENS_FROM] = power
        json_binaries[exponent - JSON_TENS_FROM] = binary
    json_prepared = True


cdef inline void json_space(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i = at[0]
    while i < end and b[i] <= 32 and (b[i] == c" " or b[i] == c"\n" or b[i] == c"\r" or b[i] == c"\t"):
        i += 1
    at[0] = i


cdef inline int hex_digit(uint8_t byte) noexcept nogil:
    if c"0" <= byte <= c"9":
        return byte - c"0"
    byte |= 32
    return byte - c"a" + 10 if c"a" <= byte <= c"f" else -1


cdef int json_unit(const uint8_t* b, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """The number behind a `\\u` at `at`, or -1."""
    cdef int unit = 0, digit
    cdef Py_ssize_t i
    if end - at < 6 or b[at] != c"\\" or b[at + 1] != c"u":
        return -1
    for i in range(at + 2, at + 6):
        digit = hex_digit(b[i])
        if digit < 0:
            return -1
        unit = unit << 4 | digit
    return unit


cdef inline bint follows(const uint8_t* b, Py_ssize_t at) noexcept nogil:
    return b[at] & 0xC0 == 0x80


cdef inline int json_text(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    """A string from behind its quote: -1 where it is none, otherwise whether there are escapes in it."""
    cdef Py_ssize_t i = at[0]
    cdef uint64_t word
    cdef uint8_t byte
    cdef int escapes = 0, unit
    while True:
        if end - i >= 8:
            memcpy(&word, b + i, 8)
            word = json_stops(word)
            if word == 0:
                i += 8
                continue
            i += json_first(word)
        elif i >= end:
            return -1
        byte = b[i]
        if byte == c'"':
            at[0] = i + 1
            return escapes
        if byte < 32:
            return -1
        if byte == c"\\":
            escapes = 1
            if i + 1 >= end:
                return -1
            byte = b[i + 1]
            if byte != c"u":
                if byte not in (c'"', c"\\", c"/", c"b", c"f", c"n", c"r", c"t"):
                    return -1
                i += 2
                continue
            unit = json_unit(b, i, end)
            if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
                return -1
            i += 6
            if 0xD800 <= unit:
                if unit <= 0xDBFF:
                    unit = json_unit(b, i, end)
                    if not 0xDC00 <= unit <= 0xDFFF:
                        return -1
                    i += 6
        elif byte < 0x80:
            i += 1
        elif byte < 0xE0:
            if byte < 0xC2 or end - i < 2 or not follows(b, i + 1):
                return -1
            i += 2
        elif byte < 0xF0:
            if end - i < 3 or not follows(b, i + 1) or not follows(b, i + 2):
                return -1
            if (byte == 0xE0 and b[i + 1] < 0xA0) or (byte == 0xED and b[i + 1] > 0x9F):
                return -1
            i += 3
        else:
            if byte > 0xF4 or end - i < 4 or not follows(b, i + 1) or not follows(b, i + 2) or not follows(b, i + 3):
                return -1
            if (byte == 0xF0 and b[i + 1] < 0x90) or (byte == 0xF4 and b[i + 1] > 0x8F):
                return -1
            i += 4


cdef Py_ssize_t json_unescaped(const uint8_t* b, Py_ssize_t i, Py_ssize_t end, uint8_t* to) noexcept nogil:
    """A string that `json_text` accepted, without its escapes; how long it is."""
    cdef Py_ssize_t size = 0
    cdef uint32_t point
    cdef uint8_t byte
    while i < end:
        byte = b[i]
        if byte != c"\\":
            to[size] = byte
            size += 1
            i += 1
            continue
        byte = b[i + 1]
        if byte != c"u":
            if byte == c"b":
                byte = 8
            elif byte == c"f":
                byte = 12
            elif byte == c"n":
                byte = 10
            elif byte == c"r":
                byte = 13
            elif byte == c"t":
                byte = 9
            to[size] = byte
            size += 1
            i += 2
            continue
        point = json_unit(b, i, end)
        i += 6
        if 0xD800 <= point <= 0xDBFF:
            point = 0x10000 + ((point - 0xD800) << 10) + (json_unit(b, i, end) - 0xDC00)
            i += 6
        if point < 0x80:
            to[size] = point
            size += 1
            continue
        if point < 0x800:
            to[size] = 0xC0 | point >> 6
            size += 1
        else:
            if point < 0x10000:
                to[size] = 0xE0 | point >> 12
                size += 1
            else:
                to[size] = 0xF0 | point >> 18
                to[size + 1] = 0x80 | (point >> 12 & 63)
                size += 2
            to[size] = 0x80 | (point >> 6 & 63)
            size += 1
        to[size] = 0x80 | (point & 63)
        size += 1
    return size


cdef inline bint digit_at(const uint8_t* b, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    return at < end and c"0" <= b[at] <= c"9"


cdef inline bint json_long(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end, int64_t* found) noexcept nogil:
    """A whole number that fits; whether there is one. What may follow it is for others to say."""
    cdef Py_ssize_t i = at[0], first
    cdef uint64_t number = 0, most = 0x7FFFFFFFFFFFFFFF
    cdef bint negative = i < end and b[i] == c"-"
    if negative:
        i += 1
        most += 1
    first = i
    while digit_at(b, i, end):
        if i - first == 19:
            return False
        number = 10 * number + (b[i] - c"0")
        i += 1
    if i == first or number > most or (b[first] == c"0" and i > first + 1):
        return False
    found[0] = <int64_t>(0 - number if negative else number)
    at[0] = i
    return True


cdef inline bint json_number(
    const uint8_t* b, Py_ssize_t* at, Py_ssize_t end, uint64_t* number, Py_ssize_t* digits, int64_t* exponent
) noexcept nogil:
    """A number; whether there is one. `digits` counts those from the first that is not 0; `number` is right up to 19 of them."""
    cdef Py_ssize_t i = at[0], first, count = 0
    cdef uint64_t whole = 0
    cdef int64_t tens = 0, power = 0
    cdef bint negative
    if i < end and b[i] == c"-":
        i += 1
    first = i
    while digit_at(b, i, end):
        whole = 10 * whole + (b[i] - c"0")
        count += whole != 0 or count != 0
        i += 1
    if i == first or (b[first] == c"0" and i > first + 1):
        return False
    if i < end and b[i] == c".":
        i += 1
        first = i
        while digit_at(b, i, end):
            whole = 10 * whole + (b[i] - c"0")
            count += whole != 0 or count != 0
            i += 1
        if i == first:
            return False
        tens = first - i
    if i < end and b[i] | 32 == c"e":
        i += 1
        negative = i < end and b[i] == c"-"
        if i < end and (b[i] == c"-" or b[i] == c"+"):
            i += 1
        first = i
        while digit_at(b, i, end):
            if power < 1000000:
                power = 10 * power + (b[i] - c"0")
            i += 1
        if i == first:
            return False
        tens += -power if negative else power
    number[0], digits[0], exponent[0] = whole, count, tens
    at[0] = i
    return True


cdef bint json_double(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end, double* found):
    """A number as Python's `float` reads it. Whether there is one that is finite and not so small that readers differ."""
    cdef Py_ssize_t begin = at[0], digits = 0
    cdef uint64_t number = 0
    cdef int64_t exponent = 0
    cdef char[JSON_NUMBER_BYTES_MAX + 1] text
    if not json_number(b, at, end, &number, &digits, &exponent) or at[0] - begin > JSON_NUMBER_BYTES_MAX:
        return False
    if digits == 0 and b[begin] == c"-" and at[0] - begin == 2:
        # Readers differ about the sign of the integer -0.
        return False
    if digits <= 19 and number >> 53 == 0 and -22 <= exponent <= 22:
        # Both are exact, so the one rounding is the right one.
        found[0] = <double>number * json_tens[exponent] if exponent >= 0 else <double>number / json_tens[-exponent]
    elif digits == 0:
        found[0] = 0.0
    elif digits > 19 or not JSON_TENS_FROM <= exponent <= JSON_TENS_TO or not json_scaled(
        number, json_powers[exponent - JSON_TENS_FROM], json_binaries[exponent - JSON_TENS_FROM], found
    ):
        memcpy(text, b + begin, at[0] - begin)
        text[at[0] - begin] = 0
        found[0] = PyOS_string_to_double(text, NULL, NULL)
        return isfinite(found[0]) and fabs(found[0]) >= JSON_SMALLEST
    if b[begin] == c"-":
        found[0] = -found[0]
    return True


cdef inline bint json_word(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end, const char* word, Py_ssize_t size) noexcept nogil:
    if end - at[0] < size or memcmp(b + at[0], word, size):
        return False
    at[0] += size
    return True


cdef bint json_colon(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    json_space(b, at, end)
    if at[0] >= end or b[at[0]] != c":":
        return False
    at[0] += 1
    json_space(b, at, end)
    return True


cdef bint json_name(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    """A name and its colon, whatever it is."""
    json_space(b, at, end)
    if at[0] >= end or b[at[0]] != c'"':
        return False
    at[0] += 1
    return json_text(b, at, end) >= 0 and json_colon(b, at, end)


cdef bint json_skip(const uint8_t* b, Py_ssize_t* at, Py_ssize_t end) noexcept nogil:
    """Any value; whether it is one, and not too deep. The lowest bit of `objects` says whether the innermost is an object."""
    cdef uint64_t objects = 0, number = 0
    cdef Py_ssize_t digits = 0
    cdef int64_t exponent = 0
    cdef int depth = 0
    cdef uint8_t byte
    while True:
        json_space(b, at, end)
        if at[0] >= end:
            return False
        byte = b[at[0]]
        if byte == c"{" or byte == c"[":
            if depth == JSON_DEPTH_MAX:
                return False
            depth += 1
            objects = objects << 1 | (byte == c"{")
            at[0] += 1
            json_space(b, at, end)
            if at[0] < end and b[at[0]] == byte + 2:
                # The closing ones stand two behind the opening ones.
                at[0] += 1
                depth -= 1
                objects >>= 1
            elif byte == c"[" or json_name(b, at, end):
                continue
            else:
                return False
        elif byte == c'"':
            at[0] += 1
            if json_text(b, at, end) < 0:
                return False
        elif byte == c"t":
            if not json_word(b, at, end, b"true", 4):
                return False
        elif byte == c"f":
            if not json_word(b, at, end, b"false", 5):
                return False
        elif byte == c"n":
            if not json_word(b, at, end, b"null", 4):
                return False
        elif not json_number(b, at, end, &number, &digits, &exponent):
            return False
        while depth:
            json_space(b, at, end)
            if at[0] >= end:
                return False
            byte = b[at[0]]
            at[0] += 1
            if byte == c",":
                if objects & 1 and not json_name(b, at, end):
                    return False
                break
            if byte != (c"}" if objects & 1 else c"]"):
                return False
            depth -= 1
            objects >>= 1
        else:
            return True


cdef struct JsonField:
    const uint8_t* name
    Py_ssize_t size
    uint8_t kind
    Py_ssize_t seen
    Py_ssize_t there
    uint8_t* valid
    uint8_t* cells
    int32_t* starts


def json_columns(bytes kinds, list names, ends, data):
    cdef _Column values = _Column(ends, data)
    cdef Py_ssize_t n = values.cells, fields = len(kinds), guess, tried, i, at, end, begin, size, total, escaped = 0
    cdef const uint8_t* b = values.data
    cdef JsonField* all_fields
    cdef JsonField* field
    cdef int64_t number = 0
    cdef double real = 0
    cdef int escapes
    cdef uint8_t byte
    cdef list valid = [], cells = [], starts = [], found = []
    cdef bytes table, name, places, octets, scratch = b""
    cdef int32_t* ends_to
    cdef const int32_t* sizes
    cdef uint8_t* scratch_to = NULL
    cdef uint8_t* to
    if not fields or len(names) != fields or len(set(names)) != fields:
        raise BraidError("INVALID_ARGUMENT", reason="every field has a kind and a name of its own")
    if not json_prepared:
        json_prepare()
    table = PyBytes_FromStringAndSize(NULL, fields * <Py_ssize_t>sizeof(JsonField))
    all_fields = <JsonField*>PyBytes_AS_STRING(table)
    for i in range(fields):
        field = all_fields + i
        name = names[i]
        field.kind = kinds[i]
        if field.kind not in b"ldbs":
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no kind {field.kind}")
        field.name, field.size = <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
        field.seen, field.there = -1, 0
        # Zeros, because a property that is missing leaves its cell alone.
        valid.append(bytes(n))
        cells.append(bytes(n if field.kind == c"b" else 4 * n if field.kind == c"s" else 8 * n))
        starts.append(bytes(4 * n if field.kind == c"s" else 0))
        field.valid = <uint8_t*>PyBytes_AS_STRING(valid[i])
        field.cells = <uint8_t*>PyBytes_AS_STRING(cells[i])
        field.starts = <int32_t*>PyBytes_AS_STRING(starts[i])
    for i in range(n):
        at = values.ends[i]
        end = values.ends[i + 1]
        if end - at > JSON_VALUE_BYTES_MAX:
            return None
        json_space(b, &at, end)
        if at >= end or b[at] != c"{":
            return None
        at += 1
        json_space(b, &at, end)
        guess = 0
        if at < end and b[at] == c"}":
            at += 1
        else:
            while True:
                if at >= end or b[at] != c'"':
                    return None
                at += 1
                begin = at
                if json_text(b, &at, end) != 0:
                    return None
                size = at - 1 - begin
                if not json_colon(b, &at, end):
                    return None
                # Names mostly come in the order of the schema.
                field = NULL
                for tried in range(fields):
                    if all_fields[guess].size == size and not memcmp(all_fields[guess].name, b + begin, size):
                        field = all_fields + guess
                    guess = guess + 1 if guess + 1 < fields else 0
                    if field != NULL:
                        break
                if field == NULL:
                    if not json_skip(b, &at, end):
                        return None
                else:
                    if field.seen == i or at >= end:
                        return None
                    field.seen = i
                    byte = b[at]
                    if byte == c"n":
                        if not json_word(b, &at, end, b"null", 4):
                            return None
                    else:
                        field.there += 1
                        field.valid[i] = 1
                        if field.kind == c"l":
                            if not json_long(b, &at, end, &number):
                                return None
                            (<int64_t*>field.cells)[i] = number
                        elif field.kind == c"d":
                            if not json_double(b, &at, end, &real):
                                return None
                            (<double*>field.cells)[i] = real
                        elif field.kind == c"b":
                            field.cells[i] = byte == c"t"
                            if not (json_word(b, &at, end, b"true", 4) if byte == c"t" else json_word(b, &at, end, b"false", 5)):
                                return None
                        else:
                            at += 1
                            begin = at
                            if byte != c'"':
                                return None
                            escapes = json_text(b, &at, end)
                            if escapes < 0:
                                return None
                            size = at - 1 - begin
                            if escapes:
                                # Such a string is not in the bytes that were given: it lies in the scratch, said by a start below 0.
                                if scratch_to == NULL:
                                    scratch = PyBytes_FromStringAndSize(NULL, values.ends[n] - values.ends[0])
                                    scratch_to = <uint8_t*>PyBytes_AS_STRING(scratch)
                                size = json_unescaped(b, begin, at - 1, scratch_to + escaped)
                                begin = -1 - escaped
                                escaped += size
                            field.starts[i] = <int32_t>begin
                            (<int32_t*>field.cells)[i] = <int32_t>size
                json_space(b, &at, end)
                if at >= end:
                    return None
                byte = b[at]
                at += 1
                if byte == c"}":
                    break
                if byte != c",":
                    return None
                json_space(b, &at, end)
        json_space(b, &at, end)
        if at != end:
            return None
    for i in range(fields):
        field = all_fields + i
        if field.kind == c"s":
            sizes = <const int32_t*>field.cells
            total = 0
            for at in range(n):
                total += sizes[at]
            places = PyBytes_FromStringAndSize(NULL, 4 * (n + 1))
            octets = PyBytes_FromStringAndSize(NULL, total)
            ends_to = <int32_t*>PyBytes_AS_STRING(places)
            to = <uint8_t*>PyBytes_AS_STRING(octets)
            total = 0
            ends_to[0] = 0
            for at in range(n):
                begin = field.starts[at]
                memcpy(to + total, b + begin if begin >= 0 else scratch_to + (-1 - begin), sizes[at])
                total += sizes[at]
                ends_to[at + 1] = <int32_t>total
        else:
            places, octets = b"", cells[i]
        found.append((b"" if field.there == n else valid[i], places, octets))
    return found
