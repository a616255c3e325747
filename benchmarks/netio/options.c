#include <stddef.h>
#include <string.h>

#include "netio.h"

enum { SERVERS_MAX = 1 << 20, SECONDS_MAX = 86400, REQUESTS_MAX = 1000000000, PORT_MAX = 65535, SOCKET_MAX = 1 << 30 };

const char HELP[] =
    "netio [-s servers] [-c connections] [-q depth] [-b size[,size]...] [-w percent[,percent]...]\n"
    "      [-t seconds|-n requests] [-I interface|-a address[,address]...] [-p port] [-B bytes] [-D] [-C]\n"
    "      [--timeout seconds] [-o name] [--json file]\n"
    "\n"
    "Measures the network with the traffic of NSD clients and servers, and no disks: run it under mpiexec, one\n"
    "process for each node. The first processes are servers, the others clients; each client has TCP connections to\n"
    "each server, and asks for blocks (reads) or sends them (writes), some requests at a time.\n"
    "\n"
    "  -s servers  how many processes are servers (default: half of them)\n"
    "  -c count    connections of each client to each server, each with a thread at both ends (default: 1)\n"
    "  -q depth    requests under way on a connection (default: 4); 1 measures the latency of a lone request\n"
    "  -b sizes    bytes of a block, several with commas between: each is a test (default: 256K)\n"
    "  -w percent  writes among the requests, several with commas between: each is a test (default: 0,100,50)\n"
    "  -t seconds  time of a test, until the last request begins (default: 5)\n"
    "  -n requests requests of each connection, instead of a time\n"
    "  -I name     servers are at the IPv4 address of this interface of their node, such as eth1\n"
    "  -a list     addresses of the servers, with commas between: server k has the k-th one, or, if there are\n"
    "              less, begins again; address:port where a tunnel leads to the server (default: 127.0.0.1)\n"
    "  -p port     server k listens on port + k (default: any that is free)\n"
    "  -B bytes    send and receive buffers of the sockets (default: the system's)\n"
    "  -D          delay small packets (default: TCP_NODELAY)\n"
    "  -C          check: blocks are a pattern that whoever gets them compares; costs time at both ends\n"
    "  --timeout s give up if nothing moves on a connection for so long (default: 30)\n"
    "  -o name     write the report to name_YYYYMMDD_HHMMSS instead of standard output\n"
    "  --json file the whole result as one JSON object, with the raw times of all processes\n"
    "  --help      this text\n"
    "\n"
    "bytes and sizes end in K, M or G (2^10, 2^20, 2^30) or in none of them.\n"
    "\n"
    "Examples:\n"
    "  mpiexec -n 2 netio                                        both on this machine, over loopback\n"
    "  mpiexec -hosts n1,n2,n3,n4 -ppn 1 netio -s 2 -I eth1      2 servers, 2 clients\n"
    "  mpiexec -hosts n1,n2 -ppn 1 netio -I eth1 -b 4K,64K,1M -q 1 -w 0,100    latency by size\n"
    "\n"
    "Report: Rate is the bytes of all blocks that clients got and sent over E-Time, from the barrier that starts all\n"
    "to the one that all have reached (the longest that one saw). A latency is from the begin of sending a request to\n"
    "the end of receiving its answer, within the queue of its connection; percentiles are within 1.6 %.\n"
    "CPU is the user and system time of clients and of servers, in processors. MB are 2^20 bytes.\n"
    "\n"
    "Choices (no document describes this program; it is a peer of iperf, which gupfs-2002 and its successors used,\n"
    "and of nsdperf):\n"
    "  - A request has 64 bytes and an answer 32; a write sends the block with its request, a read gets it with\n"
    "    its answer. A server answers the requests of a connection one after another.\n"
    "  - Whether a request reads or writes is drawn for each of them, the same way in each run of as many requests\n"
    "    on a connection.\n"
    "  - Only bytes of blocks count, not those of requests and answers, nor of TCP.\n"
    "  - Without -a servers listen on 127.0.0.1, or with -I on that address alone; with -a on all. Connections that\n"
    "    do not know the number of this job are closed. Nothing is encrypted.\n"
    "\n"
    "Exit status: 0; 1 if the run failed or a block is wrong (one process says why); 2 if the command line makes no\n"
    "sense.\n";

static bool read_sizes(void *to, int letter, const char *value) {
    struct options *own = to;
    char text[32];
    (void)letter;
    own->size_count = 0;
    for (;;) {
        const size_t length = strcspn(value, ",");
        int64_t *size = &own->sizes[own->size_count];
        if (own->size_count == SIZES_MAX) {
            fail("-b: more than %d sizes", SIZES_MAX);
            return false;
        }
        if (length >= sizeof text) break;
        memcpy(text, value, length);
        text[length] = '\0';
        if (!parse_size(text, size) || *size < 1 || *size > BLOCK_MAX) break;
        own->size_count++;
        if (value[length] == '\0') return true;
        value += length + 1;
    }
    fail("-b %s: a block is 1 to %d bytes, or a number with K or M", value, BLOCK_MAX);
    return false;
}

#define AT(field) .at = offsetof(struct options, field)

const struct option_row OPTION_ROWS[] = {
    {.letter = 's', .name = "servers", .kind = OPTION_NUMBER, AT(servers), .least = 1, .most = SERVERS_MAX},
    {.letter = 'c', .name = "connections", .kind = OPTION_NUMBER, AT(connections), .least = 1, .most = CONNECTIONS_MAX},
    {.letter = 'q', .name = "depth", .kind = OPTION_NUMBER, AT(queue), .least = 1, .most = QUEUE_MAX},
    {.letter = 'b', .name = "sizes", .kind = OPTION_OWN, .read = read_sizes},
    {.letter = 'w', .name = "writes", .kind = OPTION_NUMBERS, AT(writes), .least = 0, .most = 100},
    {.letter = 't', .name = "seconds", .kind = OPTION_NUMBER, AT(seconds), .least = 1, .most = SECONDS_MAX},
    {.letter = 'n', .name = "requests", .kind = OPTION_NUMBER, AT(requests), .least = 1, .most = REQUESTS_MAX},
    {.letter = 'I', .name = "interface", .kind = OPTION_TEXT, AT(interface)},
    {.letter = 'a', .name = "addresses", .kind = OPTION_TEXT, AT(addresses)},
    {.letter = 'p', .name = "port", .kind = OPTION_NUMBER, AT(port), .least = 1, .most = PORT_MAX},
    {.letter = 'B', .name = "buffers", .kind = OPTION_SIZE, AT(buffer_bytes), .least = 1, .what = "the size"},
    {.letter = 'D', .name = "delay", .kind = OPTION_FLAG, AT(delay)},
    {.letter = 'C', .name = "check", .kind = OPTION_FLAG, AT(check)},
    {.letter = OPTION_LONG, .name = "timeout", .kind = OPTION_NUMBER, AT(timeout), .least = 1, .most = SECONDS_MAX},
    {.letter = 'o', .name = "report", .kind = OPTION_TEXT, AT(report_base)},
    {.letter = OPTION_LONG + 1, .name = "json", .kind = OPTION_TEXT, AT(json)},
    {0},
};

struct options options = {
    .connections = 1,
    .queue = 4,
    .writes = {.count = 3, .values = {0, 100, 50}},
    .sizes = {256 << 10},
    .size_count = 1,
    .seconds = 0,
    .timeout = 30,
};

void options_check(void) {
    if (job.count < 2) {
        fail("a client and a server are needed, two processes: run it under mpiexec -n 2");
    } else if (options.servers >= job.count) {
        fail("-s %lld: of %d processes one at least must be a client", (long long)options.servers, job.count);
    } else if (options.addresses != NULL && options.interface != NULL) {
        fail("-a and -I contradict each other");
    } else if (options.seconds > 0 && options.requests > 0) {
        fail("-t and -n contradict each other");
    } else if (options.buffer_bytes > SOCKET_MAX) {
        fail("-B: socket buffers of more than %d bytes", SOCKET_MAX);
    } else if (options.port > 0 && options.port + (options.servers == 0 ? job.count / 2 : options.servers) > PORT_MAX + 1) {
        fail("-p %lld: there are no ports beyond %d for all servers", (long long)options.port, PORT_MAX);
    }
    if (options.seconds == 0) options.seconds = 5;
    if (options.servers == 0) options.servers = job.count / 2;
}
