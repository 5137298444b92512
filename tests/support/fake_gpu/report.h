#pragma once

#include <cstddef>

#include "support/fake_gpu/capture.h"

namespace mnist_train::fake_gpu {

/// Calls that the report counts. Captured work is counted with its graph instead.
enum class Counter {
  kReplays,
  kCopies,
  kPageableCopies,    // copies that made the host wait
  kSynchronizations,  // calls that wait for a device, a stream or an event
};

void count(Counter counter);

/// Counts a launch of the kernel `kernel`, a string that must live as long as the process.
/// `captured`: the launch became a node of a graph.
void count_launch(const char* kernel, bool captured);

/// Counts the nodes of a graph that `streams` streams captured, and prints the counts to stderr.
void record_graph(const Graph& graph, std::size_t streams, bool valid);

/// Writes the counts as JSON to the file that FAKE_GPU_REPORT names, with the process id appended.
/// A process without counted calls writes nothing. Called when the process exits, even by `_exit`.
void write_report();

}  // namespace mnist_train::fake_gpu
