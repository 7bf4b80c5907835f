from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # The SDK recommends its second schema, which Grafana before 12 cannot read.
    warnings.filterwarnings("ignore", message="Prefer using dashboardv2", category=DeprecationWarning)
    import dashboards.build  # noqa: F401 - imported for its first, noisy time
