#pragma once

#include "app/worker.h"
#include "base/error.h"

/// What a worker does for each command, in the source of its name.
namespace mnist_train::app {

/// Trains a whole run. Returns kDone, or kTerminated or kInterrupted when a signal ended it early
/// with everything saved. Collective. Throws Error.
ExitCode run_training(Worker& worker);

/// Evaluates a checkpoint or weights file on the test set; rank 0 prints `{"test_loss",
/// "test_accuracy", "samples"}` on standard output. Collective. Throws Error.
void run_evaluation(Worker& worker);

/// Writes the weights of a checkpoint or weights file in another format, or the config's network
/// for other programs, on one process. Throws Error(kCheckpoint), and Error(kConfig) for a network
/// that the format cannot express.
void run_export(Worker& worker);

/// Prints the modules of an external network with their parameters, and its sums, on standard
/// output: a table, or JSON. The shapes between its modules are known to its code alone. Throws
/// Error(kConfig) where the network cannot be used, and Error(kData).
void run_description(Worker& worker);

/// Classifies image files in one process and prints a JSON object a line for each, in the order in
/// which they were named: `file`, `guess`, `scores`. Images are converted to the model's channels
/// and size and normalised as in the run; light and dark are taken as they are. Throws Error(kData)
/// in the end that names every file that cannot be read as an image; the others are printed.
void run_predictions(Worker& worker);

/// Draws the first batch of a run as the model will see it, with its normalisation undone, a grid
/// for each rank. All ranks must call it; rank 0 writes the PNG file and prints what is where as
/// JSON. Throws Error.
void run_preview(Worker& worker);

/// Answers what `mnist-train doctor` asks of workers: computes on this rank's device, sums tensors
/// over the ranks in every way there is, and checks the sums; rank 0 prints one JSON object of
/// versions and times on standard output. Collective. Throws Error.
void run_diagnosis(Worker& worker);

}  // namespace mnist_train::app
