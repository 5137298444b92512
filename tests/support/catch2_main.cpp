// The main function for Catch2 version 2; version 3 provides it in a library.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
