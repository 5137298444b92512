#pragma once

/// What the stubs of a library call, which make_stubs.py writes: one for each function that the
/// real library exports. They are weak, so a function that is written by hand takes the place of
/// its stub.
namespace mnist_train::fake_gpu {

/// Launches a kernel of this library for a function that computes something, whose first argument
/// is the library's handle. Returns the library's status. Each library that has such functions
/// defines it; `function` is a literal.
int launch_with_handle(void* handle, const char* function);

}  // namespace mnist_train::fake_gpu
