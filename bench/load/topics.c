/* Topics are made before the clock starts: what a first PRODUCE pays for creating its topic is not part of any figure. */
#include <unistd.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "network.h"

void create_topics(const struct options *options)
{
    int handle = connect_to(options->port);
    int partitions = options->partitions;
    if (partitions <= options->partition)
        partitions = options->partition + 1;
    for (int i = 0; i < options->topics; i++) {
        char name[NAME_BYTES_MAX];
        uint8_t frame[2 * NAME_BYTES_MAX], answer[65536];
        topic_name(options, i, name);
        send_all(handle, frame, frame_create_topic(frame, name, partitions));
        receive_exactly(handle, answer, FRAME_HEADER_BYTES);
        uint32_t payload_bytes = get_be32(answer + 4);
        if (payload_bytes > sizeof answer - FRAME_HEADER_BYTES)
            fail("the answer to CREATE_TOPIC announces %u bytes", payload_bytes);
        receive_exactly(handle, answer + FRAME_HEADER_BYTES, payload_bytes);
        check_header(answer, FRAME_HEADER_BYTES + payload_bytes, OP_CREATE_TOPIC);
        if (payload_bytes < 1 || answer[FRAME_HEADER_BYTES] != 1)
            fail("CREATE_TOPIC %s was refused", name);
    }
    close(handle);
}
