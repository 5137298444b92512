#include <signal.h>

#include <exception>
#include <iostream>

#include "base/error.h"
#include "fetch/fetch_dataset.h"

/// Called by `mnist-train fetch`, which has checked the arguments: data set, folder, mirrors.
int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  try {
    if (argc < 3) {
      throw mnist_train::Error(mnist_train::ExitCode::kConfig,
                               "usage: mnist-train fetch NAME --to DIR");
    }
    const auto paths =
        mnist_train::fetch::fetch_dataset({argv[1], argv[2], {argv + 3, argv + argc}});
    for (const auto& path : paths) std::cout << path.string() << '\n';
    return 0;
  } catch (const mnist_train::Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "mnist-train fetch: " << error.what() << '\n';
    return static_cast<int>(mnist_train::ExitCode::kRunFailed);
  }
}
