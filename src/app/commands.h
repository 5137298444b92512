#pragma once

#include "app/worker.h"

/// The commands of a worker. Those without a file of their name are in commands.cpp.
namespace mnist_train::app {

/// Trains a whole run. Returns kDone, or kTerminated or kInterrupted if a signal ended it early
/// with everything saved. Collective. Throws Error.
ExitCode run_training(Worker& worker);

/// Evaluates a checkpoint or weights file on the test set; rank 0 prints loss, accuracy and number
/// of samples. Collective. Throws Error.
void run_evaluation(Worker& worker);

/// Writes the weights of a checkpoint or weights file in another format, or the config's network
/// for other programs, on one process. Throws Error(kCheckpoint), and Error(kConfig) for a network
/// that the format cannot express.
void run_export(Worker& worker);

/// Prints the modules of an external network, whose code alone knows the shapes between them, with
/// their parameters and totals. Throws Error(kConfig) if it cannot be used, and Error(kData).
void run_description(Worker& worker);

/// Classifies image files, or the test set as an evaluation does, in one process and prints `file`,
/// `guess` and `scores` of each, in their order. Images are converted to the model's channels and
/// size and normalised as in the run, but not inverted. Throws Error(kData) at the end, naming
/// every file that cannot be read as an image; the others are printed.
void run_predictions(Worker& worker);

/// Draws the first batch of a run as the model will see it, with its normalisation undone, a grid
/// for each rank; rank 0 writes the PNG file and prints what it shows. Collective. Throws Error.
void run_preview(Worker& worker);

/// Prints a config for a folder of pictures, and the reasons to standard error. Throws Error(kData)
/// if the folder cannot be trained on, and Error(kCheckpoint) for weights of no built-in network.
void run_init(Worker& worker);

/// Computes on this rank's device, sums tensors over the ranks in every available way, and checks
/// the sums; rank 0 prints versions and times as a JSON object. Collective. Throws Error.
void run_diagnosis(Worker& worker);

}  // namespace mnist_train::app
