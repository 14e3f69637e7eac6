# The planner: docker build --tag flyball:0.1.0 .
# How to run it: docs/deploy.md. Everything is set by the variables of docs/commands.md.

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
        "$(echo /wheels/flyball-*.whl)[server,postgres,otel]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/flyball /opt/flyball
COPY deploy/docker/healthcheck.py /opt/flyball/healthcheck.py
RUN install --directory --owner=65532 --group=65532 --mode=0750 /var/lib/flyball
# Nothing is written but the volume and /tmp: the image may be read-only.
ENV PATH=/opt/flyball/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FLYBALL_HOST=0.0.0.0 \
    FLYBALL_DATABASE=sqlite:////var/lib/flyball/planner.sqlite
USER 65532:65532
WORKDIR /var/lib/flyball
VOLUME /var/lib/flyball
EXPOSE 7787
# That the process answers; compose and Kubernetes also ask /readyz, whether it can work.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "/opt/flyball/healthcheck.py", "/healthz"]
ENTRYPOINT ["flyball"]
CMD ["serve"]
