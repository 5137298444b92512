#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "base/system.h"
#include "doctor/checks.h"
#include "launch/listen_socket.h"
#include "launch/worker_identity.h"

namespace mnist_train::doctor {

namespace {

struct Interface {
  std::string name;
  std::string address;
  bool loopback = false;
};

std::string address_text(const sockaddr& address) {
  std::array<char, NI_MAXHOST> text{};
  const socklen_t size = address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
}

/// Returns the interfaces that are up, one entry for each address.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  std::vector<Interface> found;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool is_ip = entry->ifa_addr != nullptr && (entry->ifa_addr->sa_family == AF_INET ||
                                                      entry->ifa_addr->sa_family == AF_INET6);
    if (!is_ip || (entry->ifa_flags & IFF_UP) == 0) continue;
    found.push_back(
        {entry->ifa_name, address_text(*entry->ifa_addr), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

/// Returns the first address of a name, or nothing when it does not resolve.
std::optional<std::string> resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  return address_text(*list->ai_addr);
}

const Interface* find_by_address(const std::vector<Interface>& all, const std::string& address) {
  for (const Interface& candidate : all) {
    if (candidate.address == address) return &candidate;
  }
  return nullptr;
}

/// Checks the interface on which Gloo listens for other hosts: the one that a variable names, else
/// that of the host's name.
Finding check_interface(const std::vector<Interface>& all) {
  Finding finding{"network"};
  if (const auto named = launch::environment_variable("GLOO_SOCKET_IFNAME")) {
    finding.text = "GLOO_SOCKET_IFNAME is " + *named;
    const auto has_name = [&](const Interface& each) { return each.name == *named; };
    if (std::any_of(all.begin(), all.end(), has_name)) return finding;
    finding.verdict = Verdict::kProblem;
    finding.text += ", but there is no such interface, or it is down";
    finding.remedy = "name one of those that `ip -brief address` lists";
    return finding;
  }
  const std::string host = host_name();
  const auto address = resolve(host);
  const Interface* interface = address ? find_by_address(all, *address) : nullptr;
  // Debian gives a host without a fixed address 127.0.1.1, which no interface has.
  const bool local = address && (address->starts_with("127.") || *address == "::1");
  if (interface != nullptr && !local) {
    finding.text = host + " is " + *address + " on " + interface->name;
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.text = fmt::format("the host's name {} {}", host,
                             !address ? "does not resolve"
                             : local  ? "is " + *address + ", which other hosts cannot reach"
                                      : "is " + *address + ", which is on none of its interfaces");
  finding.remedy = "for runs on several hosts name the interface: GLOO_SOCKET_IFNAME=";
  std::string choice = "eth0";
  for (const Interface& candidate : all) {
    if (!candidate.loopback) choice = candidate.name;
  }
  finding.remedy += choice;
  return finding;
}

std::optional<Finding> check_master() {
  const auto address = launch::environment_variable("MASTER_ADDR");
  if (!address) return std::nullopt;
  if (const auto resolved = resolve(*address)) {
    return Finding{"MASTER_ADDR", Verdict::kGood, *address + " is " + *resolved};
  }
  return Finding{"MASTER_ADDR", Verdict::kProblem, *address + " does not resolve",
                 "set it to an address or name of the first host that every host resolves"};
}

}  // namespace

Finding check_loopback() {
  return problem_if_throws("ports", "bring the loopback interface up: ip link set lo up", [] {
    const launch::ListenSocket socket = launch::listen_on_loopback();
    return Finding{"ports", Verdict::kGood, "can listen on 127.0.0.1"};
  });
}

Findings check_network() {
  Findings findings{check_interface(interfaces())};
  if (auto master = check_master()) findings.push_back(std::move(*master));
  return findings;
}

Finding check_launcher() {
  constexpr const char* kRemedy =
      "unset these variables, or start it with the launcher that sets all of them";
  return problem_if_throws("launcher", kRemedy, [] {
    const auto identity = launch::identity_from_environment();
    if (!identity) return Finding{"launcher", Verdict::kGood, "its own"};
    return Finding{"launcher", Verdict::kGood,
                   fmt::format("{}: rank {} of {} (from {})", launch::name_of(identity->launcher),
                               identity->rank, identity->world_size, identity->decided_by)};
  });
}

}  // namespace mnist_train::doctor
