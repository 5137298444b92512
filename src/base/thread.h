#pragma once

#include <functional>
#include <thread>

namespace mnist_train {

/// A thread that takes no signals: these are for the thread that waits for them.
std::thread start_thread(std::function<void()> work);

}  // namespace mnist_train
