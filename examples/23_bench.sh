# How good is a policy on the benchmark? A quick look, without the real traces.
headway bench least-delay least-loaded --quick --workers 2
