"use strict";

SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", validatorUrl: null, persistAuthorization: false });
