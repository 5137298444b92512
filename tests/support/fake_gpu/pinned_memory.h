#pragma once

#include <cstddef>

namespace mnist_train::fake_gpu {

/// Allocates memory of the host, which counts as page-locked; null where there is none left.
void* allocate_pinned(std::size_t bytes);
/// Takes back what `allocate_pinned` returned; returns whether it did return it.
bool release_pinned(void* address);

/// Makes memory of the program count as page-locked.
void register_pinned(void* address, std::size_t bytes);
/// Undoes `register_pinned`; returns whether there was anything to undo.
bool unregister_pinned(void* address);

/// Returns whether the address lies in page-locked memory. Copies from and to other memory of the
/// host, which is called pageable, make the host wait.
bool is_pinned(const void* address);

}  // namespace mnist_train::fake_gpu
