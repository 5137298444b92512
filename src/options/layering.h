#pragma once

#include "config/document.h"

namespace mnist_train::options {

/// `over` laid on `under`, as config::merge does. A layer that names one of two keys that exclude
/// each other (batch_size_per_process, data.format) takes back the other one (batch_size,
/// data.dataset) where a lower layer named it, and a layer that names another model or format takes
/// back what belonged to the lower one's.
config::Node lay_over(config::Node under, config::Node over);

}  // namespace mnist_train::options
