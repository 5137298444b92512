#include "data/lmdb_file.h"

#include <fcntl.h>
#include <lmdb.h>

#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

// Address space, not memory or disk: pages come as they are written.
constexpr std::size_t kMostBytes =
    sizeof(void*) >= 8 ? std::size_t{1} << 40U : std::size_t{1} << 30U;
constexpr std::int64_t kEntriesPerCommit = 10000;

using Environment = std::unique_ptr<MDB_env, decltype(&mdb_env_close)>;
using Transaction = std::unique_ptr<MDB_txn, decltype(&mdb_txn_abort)>;
using Cursor = std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)>;

fs::path data_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path / "data.mdb" : path;
}

/// Throws while another process is opening the database, which locks its lock file for itself.
void refuse_locked(const fs::path& file) {
  fs::path lock_path = file.parent_path() / "lock.mdb";
  if (file.filename() != "data.mdb") lock_path = file.string() + "-lock";
  const UniqueFd lock(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC));
  struct flock probe {};
  probe.l_type = F_RDLCK;
  probe.l_whence = SEEK_SET;
  if (!lock.valid() || ::fcntl(lock.get(), F_GETLK, &probe) != 0 || probe.l_type == F_UNLCK) return;
  throw Error(ExitCode::kData, lock_path.string() + ": locked by process " +
                                   std::to_string(probe.l_pid) + "; the database is in use");
}

}  // namespace

struct LmdbHandles {
  Environment environment{nullptr, &mdb_env_close};
  Transaction transaction{nullptr, &mdb_txn_abort};
  MDB_dbi table = 0;
};

LmdbReader::LmdbReader(const fs::path& path)
    : name_(data_file(path).string()), handles_(std::make_unique<LmdbHandles>()) {
  const fs::path file = data_file(path);
  const auto require = [this](int result) {
    if (result == 0) return;
    const char* hint = result == MDB_VERSION_MISMATCH ? " (written by another version of LMDB)"
                       : result == MDB_INVALID        ? " (not an LMDB file)"
                                                      : "";
    throw Error(ExitCode::kData, name_ + ": cannot open the LMDB: " + mdb_strerror(result) + hint);
  };
  (void)MappedFile::open(file, ExitCode::kData);  // a regular file that can be read
  refuse_locked(file);
  MDB_env* environment = nullptr;
  require(mdb_env_create(&environment));
  handles_->environment.reset(environment);
  constexpr unsigned kFlags = MDB_RDONLY | MDB_NOTLS | MDB_NOLOCK | MDB_NOSUBDIR;
  require(mdb_env_open(environment, file.c_str(), kFlags, 0));
  check_length(file);
  MDB_txn* transaction = nullptr;
  require(mdb_txn_begin(environment, nullptr, MDB_RDONLY, &transaction));
  handles_->transaction.reset(transaction);
  require(mdb_dbi_open(transaction, nullptr, 0, &handles_->table));
  MDB_stat stat{};
  require(mdb_stat(transaction, handles_->table, &stat));
  entries_ = static_cast<std::int64_t>(stat.ms_entries);
}

LmdbReader::~LmdbReader() = default;

/// Behind the end of a file that was cut off there is no memory to read, only a signal.
void LmdbReader::check_length(const fs::path& file) const {
  MDB_envinfo info{};
  MDB_stat stat{};
  mdb_env_info(handles_->environment.get(), &info);
  mdb_env_stat(handles_->environment.get(), &stat);
  const std::uintmax_t needed = (std::uintmax_t{info.me_last_pgno} + 1) * stat.ms_psize;
  const std::uintmax_t size = fs::file_size(file);
  if (size >= needed) return;
  throw Error(ExitCode::kData, name_ + ": truncated: " + std::to_string(size) + " of " +
                                   std::to_string(needed) + " bytes");
}

void LmdbReader::for_each(const Visit& visit) const {
  MDB_cursor* opened = nullptr;
  int result = mdb_cursor_open(handles_->transaction.get(), handles_->table, &opened);
  const Cursor cursor(opened, &mdb_cursor_close);
  MDB_val key{};
  MDB_val value{};
  while (result == 0) {
    result = mdb_cursor_get(cursor.get(), &key, &value, MDB_NEXT);
    if (result != 0) break;
    visit({static_cast<const char*>(key.mv_data), key.mv_size},
          {static_cast<const std::uint8_t*>(value.mv_data), value.mv_size});
  }
  if (result == MDB_NOTFOUND) return;
  throw Error(ExitCode::kData, name_ + ": cannot read the LMDB: " + mdb_strerror(result));
}

LmdbWriter::LmdbWriter(const fs::path& folder)
    : name_(folder.string()), handles_(std::make_unique<LmdbHandles>()) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(ExitCode::kRunFailed, name_ + ": " + error.message());
  MDB_env* environment = nullptr;
  require(mdb_env_create(&environment), "create");
  handles_->environment.reset(environment);
  require(mdb_env_set_mapsize(environment, kMostBytes), "reserve");
  // Nothing is waited for until the end: a database that was not finished is thrown away.
  require(mdb_env_open(environment, folder.c_str(), MDB_NOSYNC, 0644), "open");
  begin();
}

LmdbWriter::~LmdbWriter() = default;

void LmdbWriter::require(int result, const char* action) const {
  if (result == 0) return;
  throw Error(ExitCode::kRunFailed,
              name_ + ": cannot " + action + " the LMDB: " + mdb_strerror(result));
}

void LmdbWriter::begin() {
  MDB_txn* transaction = nullptr;
  require(mdb_txn_begin(handles_->environment.get(), nullptr, 0, &transaction), "write");
  handles_->transaction.reset(transaction);
  require(mdb_dbi_open(transaction, nullptr, 0, &handles_->table), "write");
}

void LmdbWriter::commit() {
  require(mdb_txn_commit(handles_->transaction.release()), "write");
  uncommitted_ = 0;
}

void LmdbWriter::append(std::string_view key, std::string_view value) {
  // LMDB takes pointers to what it does not change.
  MDB_val stored_key{key.size(), const_cast<char*>(key.data())};
  MDB_val stored{value.size(), const_cast<char*>(value.data())};
  require(mdb_put(handles_->transaction.get(), handles_->table, &stored_key, &stored, MDB_APPEND),
          "write");
  if (++uncommitted_ < kEntriesPerCommit) return;
  commit();
  begin();
}

void LmdbWriter::finish() {
  commit();
  require(mdb_env_sync(handles_->environment.get(), 1), "sync");
}

}  // namespace mnist_train::data
