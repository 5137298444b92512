#pragma once

namespace mnist_train::fake_gpu {

/// Makes a handle or descriptor of a vendor's library that holds nothing. `Status` is the library's
/// type of results; its zero is success. The program ends it by `destroy_opaque`.
template <class Status, class Handle>
Status make_opaque(Handle* handle) {
  void* const nothing = new char;  // of no type: gcc compares sizes, but the object is never read
  *handle = static_cast<Handle>(nothing);
  return Status{};
}

template <class Status, class Handle>
Status destroy_opaque(Handle handle) {
  delete reinterpret_cast<char*>(handle);
  return Status{};
}

}  // namespace mnist_train::fake_gpu
