#include "doctor/doctor.h"
#include "support/catch.h"

namespace mnist_train::doctor {

namespace {

using Catch::Matchers::ContainsSubstring;

constexpr BuildInfo kWithCuda{"0.1.0", "", "GNU", "2.11.0", "13.0", "2.28.9", ""};
constexpr BuildInfo kWithoutCuda{"0.1.0", "", "GNU", "2.11.0", "", "", ""};

/// A healthy machine with N GPUs.
Driver healthy(int gpus) {
  Driver driver;
  driver.version = "580.65.06";
  driver.library = true;
  driver.cuda_version = 13000;
  driver.gpus_on_bus = gpus;
  driver.gpus.assign(static_cast<std::size_t>(gpus), Gpu{"NVIDIA H200", 9, 0, 150'000'000'000});
  return driver;
}

Finding of_topic(const Findings& findings, const std::string& topic) {
  for (const Finding& finding : findings) {
    if (finding.topic == topic) return finding;
  }
  FAIL("no finding on " + topic);
  return findings.front();
}

}  // namespace

TEST_CASE("GPUs with a sufficiently new driver cause no problems") {
  const Findings findings = check_gpus(healthy(2), kWithCuda);
  for (const Finding& finding : findings) CHECK(finding.verdict == Verdict::kGood);
  CHECK(of_topic(findings, "GPU 1").text == "NVIDIA H200, 139.7 GiB, compute 9.0");
  CHECK_THAT(of_topic(findings, "driver").text, ContainsSubstring("CUDA up to 13.0"));
  CHECK(check_nccl(healthy(2), kWithCuda).text == "2.28.9");
}

TEST_CASE("a driver older than the build's CUDA is a problem with a remedy") {
  Driver driver = healthy(1);
  driver.cuda_version = 12080;
  const Findings findings = check_gpus(driver, kWithCuda);
  const Finding finding = of_topic(findings, "driver");
  CHECK(finding.verdict == Verdict::kProblem);
  CHECK_THAT(finding.text, ContainsSubstring("up to 12.8") && ContainsSubstring("needs 13.0"));
  CHECK_THAT(finding.remedy, ContainsSubstring("580"));
  driver.cuda_version = 13010;
  CHECK(of_topic(check_gpus(driver, kWithCuda), "driver").verdict == Verdict::kGood);
}

TEST_CASE("a GPU that this build cannot use causes a warning") {
  const Findings findings = check_gpus(healthy(1), kWithoutCuda);
  CHECK(of_topic(findings, "driver").verdict == Verdict::kWarning);
  CHECK_THAT(of_topic(findings, "driver").remedy, ContainsSubstring("scripts/setup --cuda"));
}

TEST_CASE("too little shared memory causes a warning only with several GPUs") {
  CHECK(check_shared_memory(healthy(1), 64e6).verdict == Verdict::kGood);
  CHECK(check_shared_memory(healthy(1), std::nullopt).verdict == Verdict::kGood);
  CHECK(check_shared_memory(healthy(2), 16e9).verdict == Verdict::kGood);
  for (const auto little : {std::optional(64e6), std::optional<double>()}) {
    const Finding finding = check_shared_memory(healthy(2), little);
    CHECK(finding.verdict == Verdict::kWarning);
    CHECK_THAT(finding.remedy, ContainsSubstring("--shm-size"));
  }
}

TEST_CASE("without usable GPUs, the finding reports why") {
  const Finding nothing = check_gpus(Driver{}, kWithCuda).front();
  CHECK(nothing.verdict == Verdict::kNote);
  CHECK(nothing.remedy.empty());

  Driver without_driver;
  without_driver.gpus_on_bus = 2;
  CHECK(check_gpus(without_driver, kWithCuda).front().verdict == Verdict::kWarning);
  CHECK_THAT(check_gpus(without_driver, kWithCuda).front().text,
             ContainsSubstring("no NVIDIA driver"));

  Driver without_library = healthy(0);
  without_library.library = false;
  CHECK_THAT(check_gpus(without_library, kWithCuda).front().remedy,
             ContainsSubstring("--gpus all"));

  Driver broken = healthy(0);
  broken.error = "system not yet initialized";
  CHECK(check_gpus(broken, kWithCuda).front().verdict == Verdict::kWarning);
  CHECK_THAT(check_gpus(broken, kWithCuda).front().text, ContainsSubstring("not yet initialized"));
}

}  // namespace mnist_train::doctor
