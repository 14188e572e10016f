import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Rules about TLS with the JDBC driver: the arguments are the ports of three poolers, a folder of
 * certificates, and one of keys in PKCS #8. The first pooler takes SCRAM, the second client
 * certificates, the third shows a certificate for another name. Reports on standard output as
 * test/support/programs.ts reads it.
 */
public class JdbcTls {
  private interface Rule {
    void check() throws Exception;
  }

  private static String certs;
  private static String keys;

  public static void main(String[] args) {
    String scram = args[0];
    String cert = args[1];
    String misnamed = args[2];
    certs = args[3];
    keys = args[4];
    String password = "&password=app";
    Map<String, Rule> rules = new LinkedHashMap<>();
    rules.put("SCRAM with sslmode verify-full", () -> {
      works(scram, "verify-full", "ca", password);
      refused("authentication failed", scram, "verify-full", "ca", "&password=wrong");
    });
    rules.put("a pooler whose certificate is of another authority is refused", () ->
        refused("SSL error", scram, "verify-full", "other-ca", password));
    rules.put("a pooler whose certificate is for another name is refused by verify-full only", () -> {
      refused("localhost", misnamed, "verify-full", "ca", password);
      works(misnamed, "verify-ca", "ca", password);
    });
    rules.put("a client certificate proves the name, without a password", () -> {
      works(cert, "verify-full", "ca", own("app"));
      refused("certificate authentication failed", cert, "verify-full", "ca", own("mallory"));
      refused("", cert, "verify-full", "ca", "");
    });
    System.out.println("plan " + rules.size());
    for (Map.Entry<String, Rule> entry : rules.entrySet()) {
      try {
        entry.getValue().check();
        System.out.println("ok " + entry.getKey());
      } catch (Throwable problem) {
        System.out.println("not ok " + entry.getKey());
        problem.printStackTrace(System.out);
      }
    }
  }

  private static String own(String name) {
    return "&sslcert=" + certs + "/" + name + ".crt&sslkey=" + keys + "/" + name + ".pk8";
  }

  private static Connection connect(String port, String mode, String ca, String more)
      throws SQLException {
    String url = "jdbc:postgresql://localhost:" + port + "/app?user=app&sslmode=" + mode;
    return DriverManager.getConnection(url + "&sslrootcert=" + certs + "/" + ca + ".crt" + more);
  }

  private static void works(String port, String mode, String ca, String more) throws Exception {
    try (Connection connection = connect(port, mode, ca, more);
        PreparedStatement statement = connection.prepareStatement("SELECT ?::int, current_user")) {
      for (int number = 0; number < 10; number++) {
        statement.setInt(1, number);
        try (ResultSet rows = statement.executeQuery()) {
          if (!rows.next() || rows.getInt(1) != number || !"app".equals(rows.getString(2))) {
            throw new AssertionError("another row than was asked for");
          }
        }
      }
    }
  }

  private static void refused(String text, String port, String mode, String ca, String more) {
    try {
      connect(port, mode, ca, more).close();
    } catch (SQLException problem) {
      for (Throwable each = problem; each != null; each = each.getCause()) {
        if (String.valueOf(each.getMessage()).contains(text)) return;
      }
      throw new AssertionError("refused otherwise", problem);
    }
    throw new AssertionError("it was let in");
  }
}
