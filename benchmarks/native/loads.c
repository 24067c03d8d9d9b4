/* What it costs a server to count by slot the ids that pulls ask for (native/answerer.h).
 *
 *     cc -O2 -I native -o build/loads benchmarks/native/loads.c && build/loads
 *
 * Prints the processor time for a pull of so many random ids, best of five: one in
 * SHOAL_LOAD_EVERY pulls is counted.
 */
#include <stdio.h>
#include <stdlib.h>

#include "answerer.h"

enum { IDS = 4096, BATCHES = 64, PULLS = 2000, ROUNDS = 5 };

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(void) {
    static shoal_answerer answerer;
    static int64_t ids[BATCHES * IDS];
    for (int i = 0; i < BATCHES * IDS; i++) ids[i] = ((int64_t)rand() << 20) ^ rand();
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double began = processor_seconds();
        for (int pull = 0; pull < PULLS * SHOAL_LOAD_EVERY; pull++)
            if (shoal_counts_load(&answerer))
                shoal_note_load(&answerer, ids + (pull % BATCHES) * IDS, IDS);
        double each = (processor_seconds() - began) / (PULLS * SHOAL_LOAD_EVERY);
        if (each < best) best = each;
    }
    printf("%.2f us of each pull of %d ids\n", 1e6 * best, IDS);
    return 0;
}
