# Run policies from your own files, and compare them with a built-in policy.
headway compare examples/01_first_run.yaml --policies "
  round-robin,
  examples/policies/my_router.py:FewestTokens,
  {name: examples/policies/patient_router.py:PatientPrefix, patience: 2}"
