#pragma once

#include <cstddef>

#include "support/fake_gpu/capture.h"

namespace mnist_train::fake_gpu {

/// Calls of the program that the report counts. Work that is captured is counted with its graph.
enum class Counter {
  kReplays,
  kCopies,
  kPageableCopies,    // those of kCopies that made the host wait
  kSynchronizations,  // calls that wait for a device, a stream or an event
};

void count(Counter counter);

/// Counts a launch of the kernel of that name, which must live as long as the process. `captured`:
/// it became a node of a graph.
void count_launch(const char* kernel, bool captured);

/// Counts the nodes of a graph that `streams` streams captured, and says so on stderr.
void record_graph(const Graph& graph, std::size_t streams, bool valid);

/// Writes the counts as JSON to the file that FAKE_GPU_REPORT names, with the process id appended.
/// A process that made no call that is counted writes nothing. This happens when the process ends
/// by itself, by `_exit`, too.
void write_report();

}  // namespace mnist_train::fake_gpu
