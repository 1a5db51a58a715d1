# Policies from your own files, against a built-in one.
headway compare examples/01_first_run.yaml --policies "
  round-robin,
  examples/policies/my_router.py:FewestTokens,
  {name: examples/policies/patient_router.py:PatientPrefix, patience: 2}"
