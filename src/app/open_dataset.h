#pragma once

#include "app/worker.h"
#include "data/dataset_reader.h"

namespace mnist_train::app {

/// Opens the data of the config: what the launcher reads for all its ranks, or, under another
/// launcher, what this process reads itself. All ranks must call it; rank 0 lists the samples that
/// were skipped. Throws Error(kData), also where a process of train_per_process has no samples.
data::Dataset open_dataset(Worker& worker, data::Splits splits = data::Splits::kBoth);

/// Returns the shape of the images that the job's checkpoint, if it has one, was trained on, as a
/// set without samples: as the checkpoint says, else as is known of the data set by name, else as
/// its files are. Throws Error(kCheckpoint) where the checkpoint cannot be read, and Error(kData)
/// where the data cannot.
data::ImageSet images_trained_on(Worker& worker);

/// Describes the data in the log: "60,000 training and 10,000 test images of 1x28x28, 10 classes".
std::string describe_dataset(const data::Dataset& dataset);

}  // namespace mnist_train::app
