#pragma once

namespace mnist_train {

/// The outcome of an attempt to lock a file.
enum class FileLock {
  kTaken,
  kHeld,         // by another process
  kUnsupported,  // the file system has no locks, as errno says
};

/// Locks an open file by flock, for as long as it is open in this process or in one that inherited
/// it. Waits for another holder only if asked to. File systems without flock are Lustre mounted
/// without `-o flock`, and some NFS and FUSE mounts.
FileLock take_file_lock(int fd, bool wait = false);

/// Returns whether another open file holds the lock. The lock is not taken for this, not even
/// shared, so the answer never stops a process that takes it at the same time.
bool is_file_locked(int fd);

}  // namespace mnist_train
