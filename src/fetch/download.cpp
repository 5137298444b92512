#include "fetch/download.h"

#include <curl/curl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train::fetch {

namespace {

constexpr long kConnectTimeout_s = 15;
constexpr long kSilence_s = 30;  // without a byte
constexpr long kMostRedirects = 5;

using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

struct DownloadTarget {
  int fd = -1;
  std::uint64_t bytes = 0;  // in the file
  std::uint64_t max_bytes = 0;
  bool too_long = false;
  int error = 0;
};

std::size_t receive(const char* received, std::size_t size, std::size_t count, void* context) {
  auto& target = *static_cast<DownloadTarget*>(context);
  const std::size_t bytes = size * count;
  if (target.bytes + bytes > target.max_bytes) {
    target.too_long = true;
    return 0;
  }
  if (!write_all(target.fd, received, bytes)) {
    target.error = errno;
    return 0;
  }
  target.bytes += bytes;
  return bytes;
}

void set_up(CURL* handle, const std::string& url, DownloadTarget& target, char* message) {
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https,file");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kMostRedirects);
  curl_easy_setopt(handle, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectTimeout_s);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kSilence_s);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "mnist-train");
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &target);
  curl_easy_setopt(handle, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(target.bytes));
}

void empty(DownloadTarget& target) {
  if (::ftruncate(target.fd, 0) != 0) target.error = errno;
  target.bytes = 0;
}

bool may_resume(CURLcode code) {
  return code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING ||
         code == CURLE_OPERATION_TIMEDOUT || code == CURLE_COULDNT_CONNECT;
}

}  // namespace

Transfer download(const std::string& url, const std::filesystem::path& part,
                  std::uint64_t max_bytes) {
  const auto fail = [&](int error) {
    throw Error(ExitCode::kData, part.string() + ": cannot be written: " + std::strerror(error));
  };
  const UniqueFd file = open_private_file(part, ExitCode::kData);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno);
  DownloadTarget target{file.get(), static_cast<std::uint64_t>(status.st_size), max_bytes, false,
                        0};
  std::array<char, CURL_ERROR_SIZE> message{};
  const Handle handle(curl_easy_init(), &curl_easy_cleanup);
  set_up(handle.get(), url, target, message.data());
  CURLcode code = curl_easy_perform(handle.get());
  long http_code = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &http_code);
  const bool no_ranges = code == CURLE_RANGE_ERROR || code == CURLE_BAD_DOWNLOAD_RESUME ||
                         (http_code == 416 && target.bytes > 0);
  if (no_ranges && target.error == 0) {
    empty(target);
    curl_easy_setopt(handle.get(), CURLOPT_RESUME_FROM_LARGE, curl_off_t{0});
    code = curl_easy_perform(handle.get());
  }
  if (target.error != 0) fail(target.error);
  if (target.too_long) {
    empty(target);
    return {false, false, "longer than the " + std::to_string(max_bytes) + " bytes it can have"};
  }
  if (code == CURLE_OK) return {true, false, ""};
  const std::string text = message.data();
  return {false, may_resume(code), text.empty() ? curl_easy_strerror(code) : text};
}

}  // namespace mnist_train::fetch
