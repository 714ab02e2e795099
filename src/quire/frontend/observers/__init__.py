"""Observers, which follow the requests of a front end without changing them, and admission.

`RequestObserver` is the base class. Metrics, log lines, spans and users' own loggers are observers;
`AdmissionControl` limits the requests that wait.
"""
