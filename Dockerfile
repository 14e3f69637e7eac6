# The planner: docker build --tag flyball:0.1.0 .
# How to run it: docs/deploy.md. Everything is set by the variables of docs/settings.md.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY profiles profiles
COPY client client
COPY integrations integrations
COPY server server
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv --without-pip /opt/flyball \
    && python -m pip --python /opt/flyball/bin/python install --no-cache-dir \
        "$(echo /wheels/flyball-*.whl)[server,postgres]"
# The solver's machine code for any CPU of this architecture: of small pipelines, and of large ones.
RUN export PATH="/opt/flyball/bin:$PATH" NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/opt/flyball/numba \
    && profile=$(python -c 'import flyball_profiles.examples as e; print(e.example_profile_path())') \
    && flyball plan "$profile" --gpu a100 --microbatches 4 --json >/dev/null \
    && flyball plan "$profile" --gpu a100 --microbatches 200 --effort low --json >/dev/null

FROM python:3.11-slim-bookworm
COPY --from=build /opt/flyball /opt/flyball
COPY deploy/docker/healthcheck.py /opt/flyball/healthcheck.py
COPY --chmod=0755 deploy/docker/start.sh /opt/flyball/start.sh
RUN install --directory --owner=65532 --group=65532 --mode=0750 /var/lib/flyball
# The solver's machine code lies where it may be written, copied there by start.sh; the rest of the
# image may be read-only.
ENV PATH=/opt/flyball/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/tmp/numba \
    FLYBALL_HOST=0.0.0.0 \
    FLYBALL_DATABASE=sqlite:////var/lib/flyball/planner.sqlite
USER 65532:65532
WORKDIR /var/lib/flyball
VOLUME /var/lib/flyball
EXPOSE 7787
# That the process answers; compose and Kubernetes also ask /readyz, whether it can work.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "/opt/flyball/healthcheck.py", "/healthz"]
ENTRYPOINT ["/opt/flyball/start.sh"]
CMD ["serve"]
