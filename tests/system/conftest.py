def pytest_configure(config):
    config.addinivalue_line("markers", "sweep: many cases of one kind, for scripts/test --all")
